"""The progress benchmark: times to a loss, speeds, verdicts, composition, and that a finished run is not run again."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import progress
from gradwire.decide.auto import Auto
from gradwire.errors import ConfigError
from gradwire.network import RateTrace
from harness.progress import reuse, tables
from harness.progress.cells import (
    AUTO_LOCAL,
    Lineup,
    Speed,
    best_of,
    cell_of,
    changes_of,
    shares_of,
    targets_of,
)
from harness.progress.curves import Curve, noise_of, trend
from harness.progress.ledger import Ledger
from harness.progress.local_peers import local_steps_of
from harness.progress.networks import binned, is_steady, network_of, rotated
from harness.progress.pool import perform
from harness.progress.runs import Setup, Work, each_of, evaluated, runs_of, started, timing
from harness.progress.summary import Collected, Contestants, fixed_levels, keeping, keeps_accuracy, totals, verdict
from harness.progress.tasks import task_of
from harness.progress.torch_hooks import POWERSGD_START, work_of


def line(per_step: float, losses: list[float]) -> Curve:
    """A curve whose losses are smooth already: one step each, in equal times."""
    seconds = tuple(per_step * (index + 1) for index in range(len(losses)))
    lowest = [min(losses[: index + 1]) for index in range(len(losses))]
    return Curve(seconds, tuple(losses), tuple(lowest), losses[0])


DOWN = [3.0, 2.5, 2.0, 1.5, 1.0]


def falling(steps: int, faster: float = 1.0) -> np.ndarray:
    """A loss that falls as losses do, without noise."""
    return 1.0 + 2.0 * (faster * np.arange(1, steps + 1)) ** -0.4


def test_the_trend_of_a_loss_without_noise_is_that_loss() -> None:
    assert trend(falling(400))[5:] == pytest.approx(falling(400)[5:], rel=0.005)


def test_noise_of_equal_batches_does_not_change_the_steps_to_a_loss() -> None:
    """The noise is as large as what two hundred steps gain: a run that needs as many steps as plain DDP is seen to, and
    so is, on average, one that needs 1.25 times as many."""
    ratios = {1.0: [], 1.25: []}  # type: dict[float, list[float]]
    steps = range(1, 501)
    for seed in range(6):
        generator = np.random.default_rng(seed)
        shared = 0.05 * generator.standard_normal(500)
        plain = falling(500) + shared
        target = Curve.of(steps, list(plain), noise_of(plain)).lowest[299]
        for slower, found in ratios.items():
            losses = falling(500, 1 / slower) + shared + 0.005 * generator.standard_normal(500)
            took = Curve.of(steps, list(losses), noise_of(plain)).time_to(target)
            found.append((took or math.inf) / 300)
    assert ratios[1.0] == pytest.approx([1.0] * 6, rel=0.05)
    assert np.mean(ratios[1.25]) == pytest.approx(1.25, rel=0.06)


def test_a_run_that_does_not_share_the_noise_keeps_its_own() -> None:
    generator = np.random.default_rng(3)
    plain, other = (falling(500) + 0.1 * generator.standard_normal(500) for _ in range(2))
    curve = Curve.of(range(1, 501), list(other), noise_of(plain))
    assert curve.losses[299] == pytest.approx(trend(other)[299], abs=0.01)


def test_a_curve_ends_infinite_with_a_loss_that_is_not_finite() -> None:
    curve = Curve.of([1.0, 2.0, 3.0, 4.0], [3.0, 2.0, math.nan, 1.0])
    assert (len(curve.seconds), curve.losses[-1]) == (3, math.inf)
    assert noise_of([3.0, 2.0, math.nan, 1.0])[2:].tolist() == [0.0, 0.0]


def test_time_to_a_loss_is_the_first_and_none_if_it_is_never_reached() -> None:
    curve = line(2.0, [3.0, 1.0, 2.0, 0.5])
    assert [curve.time_to(target) for target in (3.0, 2.0, 0.7, 0.4)] == [2.0, 4.0, 8.0, None]
    assert [curve.lowest_by(at) for at in (1.0, 2.0, 7.0, 100.0)] == [math.inf, 3.0, 1.0, 0.5]


def test_a_run_that_ends_where_it_began_or_is_not_finite_is_ruined() -> None:
    assert not line(1.0, DOWN).ruined
    assert line(1.0, [2.3, 1.0, 2.2]).ruined
    assert Curve.of([1.0, 2.0], [2.3, math.nan]).ruined


def test_targets_are_what_plain_ddp_has_reached_after_shares_of_its_steps() -> None:
    losses = [5.0 - 0.1 * step for step in range(20)]
    assert targets_of({"off": line(1.0, losses), "int4": line(0.1, DOWN)}) == (losses[4], losses[9], losses[17])


def test_speed_is_the_others_time_over_autos_and_a_bound_where_one_did_not_get_there() -> None:
    ours, twice, poor = line(1.0, DOWN), line(2.0, DOWN), line(3.0, [3.0, 2.9])
    assert Speed.of("x", [twice, ours], [ours, ours], [2.0, 2.0]) == Speed("x", 1.5, (2.0, 1.0), 0, 0)
    behind = Speed.of("x", [poor], [ours], [1.0])
    assert (behind.seeds, behind.behind, behind.failed) == ((6.0 / 5.0,), 1, 0)
    failed = Speed.of("x", [ours], [poor], [1.0])
    assert (failed.seeds, failed.behind, failed.failed) == ((5.0 / 6.0,), 0, 1)
    neither = Speed.of("x", [poor], [poor], [1.0])
    assert neither == Speed("x", None, (), 0, 0)
    assert (verdict(neither.as_json(), 0.95), tables.speed_text(neither.as_json())) == (None, "-")


@pytest.mark.parametrize(
    ("speed", "behind", "failed", "expected"),
    [(0.95, 0, 0, True), (0.94, 0, 0, False), (0.94, 1, 0, None), (1.2, 1, 0, True), (1.2, 0, 1, False)],
)
def test_a_verdict_is_open_only_where_the_others_steps_ended_first(
    speed: float, behind: int, failed: int, expected: bool | None
) -> None:
    assert verdict({"speed": speed, "behind": behind, "failed": failed}, 0.95) is expected


def test_the_best_fixed_level_is_reached_by_most_seeds_and_then_the_fastest() -> None:
    once, always, slow = line(1.0, [3.0, 2.9]), line(1.5, DOWN), line(2.0, DOWN)
    curves = [{"a": line(0.1, DOWN), "b": always, "c": slow}, {"a": once, "b": always, "c": slow}]
    assert best_of(["a", "b", "c"], curves, [1.0, 1.0]) == "b"


def test_a_cell_states_losses_seconds_and_speeds() -> None:
    curves = [{"off": line(2.0, DOWN), "int4": line(1.0, DOWN), "auto": line(1.1, DOWN), "dc2": line(4.0, DOWN)}]
    cell = cell_of(curves, Lineup(["off", "int4"], ["off"], ["off", "dc2"]))
    last = cell["targets"][-1]
    assert (last["loss"], last["best"]["other"]) == ([1.5], "int4")
    assert last["best"]["speed"] == pytest.approx(1 / 1.1, abs=1e-4)
    assert [one["speed"] for one in last["peers"]] == pytest.approx([2 / 1.1, 4 / 1.1], abs=1e-4)


def test_auto_is_compared_with_levels_that_keep_the_accuracy_and_with_a_trade_with_all() -> None:
    auto, traded = line(2.0, DOWN), line(1.25, DOWN)
    curves = [{"off": line(4.0, DOWN), "topk:0.01": line(1.0, DOWN), "auto": auto, "auto-trade": traded}]
    row = cell_of(curves, Lineup(["off", "topk:0.01"], ["off"], ["off"]))["targets"][-1]
    assert (row["keeping"]["other"], row["keeping"]["speed"]) == ("off", 2.0)
    assert (row["best"]["other"], row["best"]["speed"]) == ("topk:0.01", 0.5)
    assert (row["trade"]["other"], row["trade"]["speed"]) == ("topk:0.01", 0.8)
    assert [one["speed"] for one in row["trade_peers"]] == [3.2]


@pytest.mark.parametrize(
    ("difference", "points", "expected"),
    [(0.019, -5.0, True), (0.03, -0.2, True), (0.03, -0.4, False), (None, 0.0, False), (-0.5, 3.0, True)],
)
def test_accuracy_is_kept_within_a_few_nats_or_points_of_plain_ddp(
    difference: float | None, points: float, expected: bool
) -> None:
    assert keeps_accuracy([{"difference": difference, "points": points}]) is expected


def test_levels_that_lose_accuracy_at_equal_steps_are_not_among_those_that_keep_it() -> None:
    def ended(held_out: float, accuracy: float) -> dict[str, Any]:
        return {"losses": DOWN * 2, "held_out": held_out, "accuracy": accuracy}

    records = Collected({("gpt", "off", 1): ended(2.0, 0.4), ("gpt", "int4", 1): ended(2.01, 0.3)})
    records.trained |= {("gpt", "topk:0.01", 1): ended(2.3, 0.35), ("gpt", "torch-fp16", 1): ended(2.0, 0.4)}
    rows = fixed_levels(records, ["off", "int4", "topk:0.01", "torch-fp16"])
    assert keeping(rows, "gpt", ["off", "int4", "topk:0.01"]) == ["off", "int4"]


def test_peers_are_plain_ddp_torchs_hooks_and_other_controllers() -> None:
    who = Contestants(["off", "int8"], ["torch-fp16"], ["auto", "auto-trade", "dc2"])
    assert who.peers == ["off", "torch-fp16", "dc2"]


def test_auto_with_a_trade_allowed_is_the_shipped_controller_with_more_extra_steps() -> None:
    level, controller = started("auto-trade")
    assert isinstance(controller, Auto)
    assert (level, controller._dearest, Auto()._dearest) == ("auto", 2.0, 1.05)
    assert started("dc2") == ("dc2", None)


def test_levels_are_counted_from_their_runs() -> None:
    levels = runs_of(["off"] * 10 + ["int4"] * 20 + ["off"] * 5 + ["int4"] * 15)
    assert list(each_of(levels))[29:31] == ["int4", "off"]
    assert (changes_of(levels), changes_of(levels, after=0), changes_of(runs_of(["off"] * 50))) == (2, 3, 0)
    assert shares_of(levels) == {"int4": 0.7, "off": 0.3}


def test_a_binned_trace_carries_the_same_and_a_rotated_one_begins_later() -> None:
    trace = RateTrace((0.0, 0.03, 0.25), (1e6, 0.0, 3e6), 0.4)
    coarse = binned(trace, 0.1)
    assert float(coarse.mean_rate) == pytest.approx(float(trace.mean_rate))
    assert coarse.rates == pytest.approx((0.3e6, 0.0, 1.5e6, 3e6))
    assert rotated(coarse, 0.5).rates == pytest.approx((1.5e6, 3e6, 0.3e6, 0.0))
    assert float(rotated(coarse, 0.5).mean_rate) == pytest.approx(float(trace.mean_rate))


def test_the_drop_falls_within_the_run_of_every_task() -> None:
    changes = network_of("drop", 2, 10.0, None).changes
    assert [float(one.at) for one in changes] == [3.0, 9.0]


def test_a_network_is_what_its_name_says() -> None:
    access = network_of("50mbit-20ms-2%", 4, 10.0, None).links[0].spec
    assert (access.rate.mbit, access.delay, access.loss) == pytest.approx((50, 0.005, 0.01))
    assert is_steady("50mbit-20ms-2%")
    assert not is_steady("flap")


def test_a_rising_network_rises_within_the_run_and_a_flapping_one_falls_and_recovers() -> None:
    rising, flap = (network_of(name, 4, 80.0, None).changes for name in ("rising", "flap"))
    assert [one.at for one in rising] == [10, 20, 30, 40, 50, 60, 70]
    assert rising[-1].rate.mbit == 1280
    assert [one.rate.mbit for one in flap[:4]] == [5, 100, 5, 100]


def test_a_task_with_another_optimizer_is_written_with_it() -> None:
    assert task_of("cnn-0.1", 100, None).optimizer_spec == ("sgd", 0.1, 0.9)
    assert task_of("gpt-sgd:0.05:0.9", 100, None).optimizer_spec == ("sgd", 0.05, 0.9)
    assert task_of("deep-adam:0.01", 100, None).optimizer_spec == ("adam", 0.01, 0.0)


@pytest.mark.parametrize("name", ["att-lte", "norway-train"])
def test_a_network_or_task_without_its_data_says_so(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--data-dir"):
        network_of(name, 2, 1.0, tmp_path)
    with pytest.raises(ConfigError, match="--data-dir"):
        task_of("resnet", 10, tmp_path)


def test_a_peer_that_was_run_with_fewer_seeds_is_compared_in_those() -> None:
    first = {"off": line(2.0, DOWN), "auto": line(1.0, DOWN), "dc2": line(3.0, DOWN)}
    second = {"off": line(2.0, DOWN), "auto": line(0.5, DOWN)}
    row = cell_of([first, second], Lineup(["off"], ["off"], ["off", "dc2"]))["targets"][-1]
    assert {peer["other"]: peer["seeds"] for peer in row["peers"]} == {"off": [2.0, 4.0], "dc2": [3.0]}
    assert row["seconds"]["dc2"] == [12.0]


def test_held_out_losses_are_taken_in_the_last_tenth_of_a_run() -> None:
    assert evaluated(1000) == [1000, 980, 960, 940, 920]
    assert evaluated(8) == [8, 7, 6, 5, 4]


# ---- runs ------------------------------------------------------------------------------------------------------------
ARGUMENTS = (
    "--tasks mlp --nets lossy-wifi --fixed off,int8 --hooks torch-fp16 --controllers auto,auto-trade --seeds 1 "
    "--steps 8 --hosts 2 --jobs 1"
)


def benchmark(folder: Path, *more: str) -> progress.Benchmark:
    words = [*ARGUMENTS.split(), "--runs", str(folder / "runs"), *more]
    return progress.Benchmark(progress.options_of(words))


def test_quick_changes_defaults_and_nothing_that_was_given() -> None:
    quick = progress.options_of(["--quick"])
    assert (quick.seeds, quick.steps) == (progress.QUICK["seeds"], progress.QUICK["steps"])
    given = progress.options_of(["--quick", "--seeds", "3", "--steps", str(progress.STEPS)])
    assert (given.seeds, given.steps, given.nets) == (3, progress.STEPS, progress.QUICK["nets"])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("progress")
    ran = benchmark(folder)
    kinds = [work.settings["kind"] for work, _ in ran.run()]
    assert Counter(kinds) == {"train": 2, "peer": 1, "whole": 3, "time": 3}
    result = ran.result("python benchmarks/progress.py")
    ran.write(folder / "out", result)
    return folder, result


def test_a_finished_benchmark_runs_nothing_again(
    finished: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, result = finished
    monkeypatch.setattr(Work, "run", lambda self, steps=None: pytest.fail(f"ran again: {self.settings}"))
    again = benchmark(folder)
    assert len(list(again.run())) == 9
    assert again.result("")["cells"] == result["cells"]
    loaded = benchmark(folder)
    loaded.load()
    assert loaded.result("")["cells"] == result["cells"]


def test_composed_times_and_losses_are_those_of_a_whole_run(finished: tuple[Path, dict[str, Any]]) -> None:
    _, result = finished
    (row,) = result["composition"]
    assert (row["task"], row["network"], row["level"]) == ("mlp", "lossy-wifi", "int8")
    assert row["losses"][0] == row["losses"][1]
    assert abs(row["deviation"]) < 0.05


def test_the_page_states_the_cell_and_its_speed(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, result = finished
    text = (folder / "out" / "progress.md").read_text()
    (cell,) = result["cells"]
    assert f"| mlp | lossy-wifi | {cell['targets'][-1]['loss'][0]:.3f} |" in text
    assert tables.speed_text(cell["targets"][-1]["best"]) in text
    assert json.loads((folder / "out" / "progress.json").read_text())["cells"] == result["cells"]
    assert (folder / "out" / "progress-mlp.png").stat().st_size > 0


def test_what_has_not_been_run_is_named_and_not_a_cell(tmp_path: Path) -> None:
    one = benchmark(tmp_path)
    one.load()
    result = one.result("")
    assert (result["cells"], result["missing"]) == ([], ["mlp on lossy-wifi"])
    assert totals([], [])["pairs"] == 0


def test_runs_are_divided_among_processes(tmp_path: Path) -> None:
    setup = Setup(2, 2)
    works = [Work(setup.settings("train", task="mlp", level=level, seed=1), setup) for level in ("off", "int8")]
    done = {work.settings["level"]: record for work, record in perform(works, Ledger(None), jobs=2)}
    assert sorted(done) == ["int8", "off"]
    assert all(len(record["losses"]) == 2 for record in done.values())


# ---- reuse -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["train", "peer"])
def test_a_training_of_earlier_code_is_kept_if_its_first_steps_are_repeated(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reuse, "REPEATED", 2)
    setup, ledger = Setup(4, 2), Ledger(None)
    level = "int8" if kind == "train" else "torch-fp16"
    work = Work(setup.settings(kind, task="mlp", level=level, seed=1), setup)
    ran = work.run()
    ledger.add(work.settings, "earlier", ran)
    kept = reuse.repeated(work, ledger)
    assert kept is not None
    assert (kept["losses"], kept["code"]) == (ran["losses"], work.code)
    assert ledger.get(work.settings, work.code) is kept


@pytest.mark.parametrize("other", [{"losses": [9.0]}, {"traffic": runs_of([[[]]])}])
def test_a_training_that_the_present_code_does_not_repeat_is_run_again(
    other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reuse, "REPEATED", 1)
    setup, ledger = Setup(2, 2), Ledger(None)
    work = Work(setup.settings("train", task="mlp", level="off", seed=1), setup)
    ledger.add(work.settings, "earlier", work.run() | other)
    assert reuse.repeated(work, ledger) is None


def test_a_controllers_run_of_earlier_code_is_never_kept() -> None:
    setup, ledger = Setup(2, 2), Ledger(None)
    work = Work(setup.settings("whole", task="mlp", network="lan100", level="auto", seed=1), setup)
    ledger.add(work.settings, "earlier", {"losses": []})
    assert reuse.repeated(work, ledger) is None


def test_a_cell_needs_auto_and_plain_ddp_and_further_seeds_the_fixed_levels_of_the_first() -> None:
    records = Collected()
    for seed, names in ((1, ("off", "int8")), (2, ("off",)), (3, ("off", "int8", "int4"))):
        for name in names:
            records.trained["mlp", name, seed] = {"losses": DOWN * 2}
            records.timed["mlp", "lte", name, seed] = {"seconds": [float(at) for at in range(10)]}
        records.whole["mlp", "lte", "auto", seed] = {"losses": DOWN * 2, "seconds": [float(at) for at in range(10)]}
    curves = records.curves(("mlp", "lte"), [1, 2, 3], Contestants(["off", "int8", "int4"], [], ["auto", "dc2"]))
    assert {seed: list(found) for seed, found in curves.items()} == {
        1: ["off", "int8", "auto"], 3: ["off", "int8", "auto"]
    }  # fmt: skip


def test_local_steps_are_timed_as_they_were_trained() -> None:
    """The composition of `local:3` on a network has the times of the whole run there, up to the seed's jitter."""
    setup = Setup(12, hosts=2)
    trained = Work(setup.settings("local", task="mlp", level="local:3", seed=1), setup).run()
    patterns = list(each_of(trained["traffic"]))
    assert [one[0] for one in patterns] == [False, False, True] * 4
    timed = timing(setup, "mlp", "150ms", 1, trained).run()["seconds"]
    waits = [after - before for before, after in pairwise([0.0, *timed])]
    assert min(waits[2::3]) > 10 * max(waits[0::3]), "ranks wait for the network at the end of a round only"


def test_what_a_hook_computes_is_charged_from_its_first_compressed_step_on() -> None:
    setup = Setup(20, hosts=2)
    work = Work(setup.settings("peer", task="mlp", level="torch-powersgd:4", seed=1), setup)
    trained = work.run()
    free, charged = (
        timing(setup, "mlp", "lan1g", 1, trained | own).run()["seconds"] for own in ({}, {"settings": work.settings})
    )
    elements = sum(numel for numel, _ in trained["traffic"]["kinds"][0][0])
    assert charged[:POWERSGD_START] == free[:POWERSGD_START]
    more = (charged[-1] - free[-1]) / (20 - POWERSGD_START)
    assert more == pytest.approx(work_of("torch-powersgd:4")[0] * 1e-9 * elements, rel=0.05)


def test_auto_with_local_steps_runs_whole_and_names_its_rounds() -> None:
    setup = Setup(40, hosts=2)
    ran = Work(setup.settings("whole", task="mlp", network="5mbit", level=AUTO_LOCAL, seed=1), setup).run()
    assert len(ran["seconds"]) == 40
    assert any(" every " in kind for kind in ran["levels"]["kinds"])
    assert ran["reasons"]


def test_contestants_with_local_steps_are_compared_with_the_best_fixed_level() -> None:
    seed = {"off": line(4.0, DOWN), "int8": line(2.0, DOWN), "auto": line(2.0, DOWN), "local:20": line(0.5, DOWN)}
    cell = cell_of([seed], Lineup(["off", "int8"], ["off"], ["off"], ["local:20"]))
    last = cell["targets"][-1]["local"][0]
    assert (last["name"], last["other"], last["speed"]) == ("local:20", "int8", 4.0)
    named = {"task": "mlp", "network": "5mbit", **cell}
    assert "| `int8` | 8.0 | `local:20` | 2.0 | 4.00 |" in tables.local_table([named])[-1]


@pytest.mark.parametrize("name", ["local", "local:0", "local:x", "20", "torchft-diloco"])
def test_a_contestant_that_is_no_number_of_local_steps_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="local:STEPS"):
        local_steps_of(name)
