"""The summary reports the gain of another bucket size."""

from gradwire.events import Advised, Attached
from gradwire.observe.summary import SummarySink


def test_the_summary_names_the_setting_and_the_gain() -> None:
    tally = SummarySink()
    tally.emit(Attached(1.0, 0, 4, 1000, {}))
    assert "bucket_cap_mb" not in str(tally.summary())
    tally.emit(Advised(2.0, 16, 5, 0.12))
    assert "DDP(bucket_cap_mb=5) would shorten a step by about 12%" in str(tally.summary())
