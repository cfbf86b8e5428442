"""Timed handle: the handle of a model that was attached with `sync_seconds`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradwire.closing import Closing
from gradwire.config import Config
from gradwire.errors import ConfigError
from gradwire.integrations.local_handle import LocalParts, LocalStepsHandle
from gradwire.local_steps import round_state
from gradwire.local_steps.late_rank import LateRankThread
from gradwire.local_steps.timed_rounds import TimedRounds
from gradwire.runtime.builder import BuiltSession
from gradwire.transport.lanes.open_lanes import destroy_group


class TimedHandle(LocalStepsHandle):
    """As with `sync_every`. `synchronise` and `detach` may be called after different numbers of steps: a rank that
    calls one takes part in the rounds of the others, with weight 0, until all have called it."""

    def __init__(self, built: BuiltSession, config: Config, parts: LocalParts, rounds: TimedRounds) -> None:
        super().__init__(built, config, parts)
        self._timed = rounds
        self._late = LateRankThread(rounds)
        self._open = Closing(
            self._late.close,
            rounds.retire,
            rounds.agreement.close,
            self._open.close,
            self._destroy_group,
        )
        if rounds.buffers.group.size() > 1 and not rounds.delay:
            self._late.start()

    def _destroy_group(self) -> None:
        """The group that exchanges had for themselves. Plain DDP, after `detach`, still uses it."""
        if not self._hook.detached:
            destroy_group(self._timed.buffers.group)

    @property
    def global_steps(self) -> int:
        """Steps of all ranks together that are in the global weights. It changes at the end of a round only, on all
        ranks alike, so loops that end at this number end together."""
        return self._timed.global_steps

    def count_samples(self, count: int) -> None:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ConfigError(f"count_samples: {count!r} is not valid; it must be a whole number >= 1 of samples")
        self._timed.count_samples(count)

    def _facts_to_load(self, states: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Ranks are at different steps of a round, but send the same fragment next."""
        found = {str(one.get(round_state.KEY, {}).get("fragment", 0)) for one in states}
        return {"the next fragment of the state to load": ", ".join(sorted(found))}

    def state_dict(self) -> dict[str, Any]:
        with self._timed.paused():
            return super().state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        self._timed.meet("load_state_dict() was called")  # no rank is in a round while states are compared
        super().load_state_dict(state)
        self._timed.resume()

    def detach(self) -> None:
        super().detach()
        self._late.close()
