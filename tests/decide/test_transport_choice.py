"""The transport chooser: opens what is predicted to be better, keeps what was measured to be better."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from gradwire.decide.loss_limit import limited_by_loss
from gradwire.decide.summable_controller import summable
from gradwire.decide.transport_choice import AGAIN, RETRY, TransportChooser
from gradwire.decide.transport_step import TransportChoice, TransportStep
from gradwire.decide.transport_trial import OPENING, shifted
from gradwire.level import Level
from gradwire.types import LinkView, RouteForecast, StepFacts, TransportKind, View

DELAY = 2  # steps between a decision and the step that uses it
WORLD = 4


@dataclass
class World:
    """A job whose step takes so long over each transport; ranks open what is asked for after some steps."""

    seconds: dict[TransportKind, float]
    exposed: float = 0.15
    trip: float = 0.08
    bandwidth: float = 3e6
    loss: float = 0.0
    level: str = "int4"
    noise: float = 0.0
    opens: bool = True
    chooser: TransportChooser = field(default_factory=TransportChooser)
    changes: int = 0
    steady: bool = True
    routes: RouteForecast | None = None
    reasons: list[str] = field(default_factory=list)
    used: list[TransportKind] = field(default_factory=list)
    asked: list[TransportKind] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._coming: list[TransportKind] = ["group"] * DELAY
        self._ready: set[TransportKind] = set()
        self._failed: set[TransportKind] = set()
        self._random = random.Random(1)

    def run(self, steps: int) -> World:
        for _ in range(steps):
            ran = self._coming.pop(0)
            choice = self._take(ran)
            self._coming.append(choice.use)
            self.used.append(ran)
            self.asked.append(choice.prepare)
            self.reasons += [choice.reason] if choice.reason else []
            if choice.prepare != "group":
                (self._ready if self.opens else self._failed).add(choice.prepare)
        return self

    def _take(self, ran: TransportKind) -> TransportChoice:
        seconds = self.seconds[ran] * (1 + self.noise * self._random.uniform(-1, 1))
        facts = StepFacts(seconds, self.exposed, self.exposed, 400_000, 2)
        link = LinkView(rtprop=self.trip, bandwidth=self.bandwidth, loss=self.loss, confidence=1.0)
        view = View(link, changes=self.changes)
        level = Level.parse(self.level)
        used = summable(level) if ran == "trees" else level
        step = TransportStep(ran, used, facts, view, WORLD, lambda kind: 2, self.steady, self.routes)
        return self.chooser.take(step, self._ready, self._failed)


FAR: dict[TransportKind, float] = {"group": 0.25, "tcp": 0.17, "ltp": 0.2}


def test_on_a_far_network_a_wire_of_our_own_is_opened_measured_and_kept() -> None:
    world = World(FAR).run(60)
    assert world.used[0] == "group"
    assert world.used[-1] == world.chooser.use == "tcp"
    assert set(world.used) == {"group", "tcp"}
    assert world.reasons[0] == "tcp would save about 80 ms of a step of 250 ms: opening tcp"
    assert world.reasons[-1] == "170 ms a step over tcp, 250 ms over group"


@pytest.mark.parametrize(
    "world",
    [
        World({"group": 0.1}, trip=0.0002, exposed=0.02),
        World({"group": 0.25}, exposed=0.001),
        World({"group": 2.0}, trip=0.08, exposed=1.9),
    ],
    ids=["a local network", "an exchange that compute hides", "a step that bytes take"],
)
def test_where_nothing_is_to_be_gained_nothing_is_opened(world: World) -> None:
    world.run(200)
    assert set(world.asked) == {"group"}
    assert world.reasons == []


def test_a_worse_transport_is_left_again_and_tried_late() -> None:
    world = World({"group": 0.25, "tcp": 0.26, "ltp": 0.26}).run(100)
    assert world.chooser.use == "group"
    tries = [step for step in range(1, 100) if world.used[step] != "group" and world.used[step - 1] == "group"]
    assert len(tries) == 2, "each of the two wires once"
    assert world.used[-1] == "group"
    world.run(RETRY // 2)
    assert "tcp" not in world.used[110:], "not again so soon"
    world.run(RETRY)
    assert "tcp" in world.used[110:]


def test_a_far_longer_step_ends_a_trial_at_once() -> None:
    world = World({"group": 0.25, "tcp": 5.0, "ltp": 5.0}).run(60)
    assert world.used.count("tcp") <= 1 + DELAY
    assert world.chooser.use == "group"


def test_where_a_rank_cannot_open_it_the_job_stays_and_says_so_once() -> None:
    world = World(FAR, opens=False).run(400)
    assert set(world.used) == {"group"}
    assert [reason for reason in world.reasons if "not possible" in reason] == [
        "tcp is not possible here; gradients stay on group",
        "ltp is not possible here; gradients stay on group",
    ]
    assert world.asked[100:] == ["group"] * 300


def test_loss_that_limits_tcp_speaks_for_ltp() -> None:
    limited = {"group": 0.6, "tcp": 0.5, "ltp": 0.2}
    world = World(limited, exposed=0.5, trip=0.03, bandwidth=2e6, loss=0.014, noise=0.1)  # type: ignore[arg-type]
    world.run(80)
    assert world.chooser.use == "ltp"
    assert "tcp" not in world.used


def test_steps_from_before_a_change_are_no_comparison() -> None:
    """The network becomes twice as fast while TCP is opened, over which it would be slower than over the group."""
    world = World({"group": 0.5, "tcp": 0.5, "ltp": 0.5}, exposed=0.45).run(5)
    world.seconds = {"group": 0.25, "tcp": 0.3, "ltp": 0.3}
    world.run(60)
    assert world.chooser.use == "group"


def test_a_trial_that_a_change_disturbs_says_nothing_and_is_repeated_soon() -> None:
    world = World({"group": 0.25, "tcp": 0.24, "ltp": 0.24})
    while world.used.count("tcp") < OPENING + 5:
        world.run(1)
    world.seconds = {kind: 2 * seconds for kind, seconds in world.seconds.items()}
    world.run(10)
    assert "the network changed while tcp was measured" in world.reasons
    world.seconds["tcp"] = 0.4
    world.run(AGAIN + 30)
    assert world.chooser.use != "group"


@pytest.mark.parametrize("changed", [0.5, 2.0])
def test_a_trial_that_was_clearly_shorter_until_the_network_changed_is_kept(changed: float) -> None:
    world = World({"group": 0.25, "tcp": 0.2, "ltp": 0.2})
    while world.used.count("tcp") < OPENING + 5:
        world.run(1)
    world.seconds = {kind: changed * seconds for kind, seconds in world.seconds.items()}
    world.run(6)
    assert world.chooser.use == "tcp"
    assert not any("the network changed" in reason for reason in world.reasons)


@pytest.mark.parametrize(
    ("seconds", "found"),
    [
        ([1.0, 1.02, 0.98, 0.5, 0.52, 0.51], True),
        ([1.0, 1.02, 0.98, 1.3, 1.4, 1.35], True),
        ([1.0, 1.02, 0.98, 1.03, 1.04, 1.05], False),
        ([1.0, 0.5, 0.98, 0.6, 0.52, 0.61], False),
        ([1.0, 0.5, 0.5, 0.5], False),
    ],
)
def test_a_shift_is_where_all_of_the_last_steps_differ_from_all_before(seconds: list[float], found: bool) -> None:
    assert shifted(seconds) is found


@pytest.mark.parametrize(("rate", "limited"), [(2e6, True), (40e6, False)])
def test_a_rate_near_what_tcp_gets_under_loss_is_limited_by_it(rate: float, limited: bool) -> None:
    """1.22 x 1448 bytes / (80 ms x 0.01) = 2.2 MB/s on each of three connections."""
    view = View(LinkView(rtprop=0.08, bandwidth=rate, loss=1e-4))
    assert limited_by_loss(view, WORLD) is limited
    assert not limited_by_loss(View(LinkView(rtprop=0.08, bandwidth=rate)), WORLD), "without loss nothing is"


@pytest.mark.parametrize("seed", range(10))
def test_noise_does_not_make_it_keep_what_is_no_better(seed: int) -> None:
    world = World({"group": 0.25, "tcp": 0.25, "ltp": 0.25}, noise=0.3)
    world._random = random.Random(seed)
    world.run(400)
    assert world.chooser.use == "group" or world.chooser.switches == 1
    assert sum(world.used[n] != world.used[n - 1] for n in range(1, 400)) <= 4


def test_after_a_change_that_makes_steps_longer_the_group_is_measured_again() -> None:
    world = World(FAR).run(60)
    assert world.chooser.use == "tcp"
    world.changes = 1
    world.seconds = {"group": 0.3, "tcp": 0.6, "ltp": 0.6}
    world.run(60)
    assert world.chooser.use == "group"
    assert "300 ms a step over group, 600 ms over tcp" in world.reasons


def test_a_trial_begins_only_when_the_level_stays_and_ends_undecided_when_it_does_not() -> None:
    world = World(FAR)
    world.steady = False
    world.run(60)
    assert "tcp" not in world.used
    world.steady = True
    while not world.chooser.trying:
        world.run(1)
    world.run(DELAY + 1)
    world.level = "int8"
    world.run(1)
    assert not world.chooser.trying
    assert world.chooser.use == "group"
    world.run(60)
    assert world.chooser.use == "tcp", "it is tried again at the new level, at once"


def test_during_a_trial_it_says_so_and_rounds_of_local_steps_are_left_alone() -> None:
    world = World(FAR)
    while not world.chooser.trying:
        world.run(1)
    assert world.chooser.use == "group", "kept only after the trial"
    chooser, facts = TransportChooser(), StepFacts(2.0, 0.5, 0.5, 400_000, 2, steps=20)
    for _ in range(100):
        step = TransportStep("group", Level(), facts, View(LinkView(rtprop=0.5)), WORLD, lambda kind: 2)
        assert chooser.take(step, (), ()) == TransportChoice("group")
