"""Elastic controller: lets training continue when members are lost, leave or rejoin.

In: lost peers, reconnected peers, and the member's epoch. Out: halted, repeated or skipped steps, requests for what
this member missed, and states for members that rejoin. Runs on the executor's thread, after every poll.
"""

from __future__ import annotations

from gradwire.errors import LinkError
from gradwire.tree.control_channel import ControlChannel
from gradwire.tree.lost_peer import LostPeerError
from gradwire.tree.membership_listener import MembershipListener
from gradwire.tree.reconnect import Reconnector
from gradwire.tree.rejoin_state import RejoinState
from gradwire.tree.state_transfer import TransferableState
from gradwire.tree.step_runner import StepRunner
from gradwire.tree.step_snapshot import StepSnapshot


class ElasticController:
    """One member's reaction to changes of membership. `rejoin` is how long (seconds) to wait for a lost member."""

    def __init__(
        self,
        runner: StepRunner,
        snapshot: StepSnapshot,
        channel: ControlChannel,
        reconnector: Reconnector,
        listener: MembershipListener,
        rejoin: float,
    ) -> None:
        self._member, self._membership = runner.member, runner.member.membership
        self._runner, self._snapshot, self._channel = runner, snapshot, channel
        self._frame_io = channel.frame_io
        self._reconnector, self._listener, self._rejoin = reconnector, listener, rejoin
        self._rejoin_state = RejoinState(channel, runner.member, snapshot)
        # All that may ever be there: the first members, and those at places that are empty now.
        self._others = (set(self._member.members) | self._frame_io.left) - {self._member.rank}
        self._halted = False
        self._waiting_since: float | None = None

    @property
    def _stopped(self) -> bool:
        """Whether no step may begin or end."""
        return self._membership.stopped or self._membership.rejoin.asking

    def may_start(self) -> bool:
        """Whether a request may start now; if not, it starts with the next epoch."""
        self._halted = self._halted or (self._runner.tag is None and self._stopped)
        return not self._halted

    def connect(self) -> None:
        """As a process that replaces a lost one, or joins: connect to all members and ask to be included."""
        peers = set(self._member.members)
        self._frame_io.disconnected |= peers
        for peer in peers:
            self._reconnector.reconnect(peer, self._frame_io.now() + self._rejoin)

    def set_replica_state(self, state: TransferableState) -> None:
        self._rejoin_state.set_state(state)
        self._membership.rejoin.enabled = self._rejoin > 0

    def announce_leave(self) -> None:
        """Send a Leave message to all peers, so that this member does not count as lost."""
        for peer in self._membership.connected:
            self._channel.send(peer, self._member.leave())

    def lose(self, error: LostPeerError, closing: bool = False) -> None:
        """Expect nothing more from this peer; the membership protocol decides who continues."""
        peer, now = error.peer, self._frame_io.now()
        self._frame_io.disconnect(peer)
        self._membership.disconnected(peer)
        if closing:
            return
        if self._membership.rejoin.enabled and not error.left:
            self._reconnector.reconnect(peer, now + self._rejoin)
        if peer in self._membership.alive:
            self._listener.lost(peer, str(error))
            self._member.lost(peer, now)

    def poll(self, now: float, closing: bool) -> None:
        """1. update connections  2. halt the step when its epoch ends  3. repeat it in the next epoch, or catch up
        4. send states to members that rejoin."""
        self._update_connections(now, closing)  # 1
        tag = self._runner.tag
        if tag is not None and (self._stopped or self._member.epoch != tag.epoch):  # 2
            self._runner.halt()
            self._halted = True
        self._require_peers(now, closing)
        if self._halted and not self._stopped:  # 3
            self._repeat_step()
        elif (
            self._halted
            and self._membership.missing is not None
            and self._snapshot.closed
            and not self._membership.rejoin.asking
        ):
            self._rejoin_state.request_missing(self._results_arrived, self._state_loaded)
        if self._runner.tag is not None and not self._stopped:  # 4
            for peer, nbytes in self._rejoin_state.send_states():
                how = f"rejoined at step {self._member.step} and received {nbytes / 1e6:.1f} MB of state"
                self._listener.rejoined(peer, how)

    def _update_connections(self, now: float, closing: bool) -> None:
        member, membership = self._member, self._membership
        # A replica state is replaced only while its training waits here for a whole step.
        membership.rejoin.ready = self._snapshot.closed
        for peer in self._reconnector.moved((self._frame_io.left | self._frame_io.disconnected) - set(member.members)):
            # A new process is there: it replaces one that left, stopped or was lost, or it joins the job.
            self._frame_io.left.discard(peer)
            self._frame_io.disconnected.add(peer)
            membership.replaced(peer)
            self._reconnector.reconnect(peer, now + self._rejoin)
        for peer in self._reconnector.poll(now):
            self._frame_io.reconnected(peer)
            self._channel.restart(peer)
            membership.reconnected(peer)
        for peer in self._frame_io.disconnected & membership.alive:
            member.lost(peer, now)  # a new epoch still included it
        for peer in () if closing else member.blocking():
            why = f"rank {peer} left normally after step {membership.left[peer].step}"
            self.lose(LostPeerError(peer, why, left=True))

    def _repeat_step(self) -> None:
        self._halted, self._waiting_since = False, None
        for request in self._snapshot.rewind():
            self._runner.start(request)
        self._runner.admit()

    def _results_arrived(self, step: int) -> None:
        """The results that this member missed are in its gradients."""
        self._halted = False
        self._runner.pending.step_done(step)

    def _state_loaded(self, step: int) -> None:
        seconds = self._frame_io.now() - self._waiting_since if self._waiting_since is not None else 0.0
        self._listener.rejoined(self._member.rank, f"was disconnected for {seconds:.1f} s, rejoined at step {step + 1}")

    def _require_peers(self, now: float, closing: bool) -> None:
        """LinkError for a member that cannot continue: it may not rejoin, or has waited for the others long enough."""
        member, membership, since = self._member, self._membership, self._membership.rejoin.since
        if not membership.rejoin.enabled:
            if membership.fresh and membership.rejoin.ready:
                raise LinkError(
                    f"rank {member.rank} was restarted and cannot rejoin: call handle.hand_over(...) before the first "
                    "step, and set planning.rejoin above 0"
                )
            member.require_quorum()
        elif since is not None and not closing:
            self._waiting_since = since
            if self._others <= self._frame_io.left:
                raise LinkError(
                    f"the others ended the job while rank {member.rank} was disconnected; its weights are older than "
                    "theirs, use another rank's"
                )
            if now - since > self._rejoin:
                raise LinkError(self._gave_up(now - since))

    def _gave_up(self, seconds: float) -> str:
        rank = self._member.rank
        if self._membership.fresh:
            known = self._reconnector.failures()
            return (
                f"rank {rank} could not join within {seconds:.0f} s (planning.rejoin). Check that it reaches all "
                "other ranks, that GRADWIRE_SECRET is the same, that they still wait, and that the old process is dead"
                + (f". {known}" if known else "")
            )
        return (
            f"rank {rank} was disconnected for {seconds:.0f} s, longer than planning.rejoin; restart it from the last "
            "checkpoint with the others"
        )
