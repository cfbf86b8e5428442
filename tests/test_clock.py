"""Only dates come from the wall clock: code that waits, measures or decides uses the monotonic clock."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
WALL = re.compile(r"\btime\.time\b|\bdatetime\.(now|utcnow)\b|\btime_ns\(|system_clock|CLOCK_REALTIME|gettimeofday")
# Dates of recordings, and whether a recording's file is fresh: not used for training.
FOR_PEOPLE = {
    "src/gradwire/observe/recorder.py",
    "src/gradwire/observe/follow.py",
    "src/gradwire/observe/report.py",
    "src/gradwire/dashboard/library.py",
    # It stretches every clock of a process in the lab's dilated time, that of dates too.
    "native/emulator/dilate.cpp",
}


def test_only_dates_come_from_the_wall_clock() -> None:
    files = [*ROOT.glob("src/**/*.py"), *ROOT.glob("native/**/*.cpp"), *ROOT.glob("native/**/*.h")]
    assert len(files) > 100
    found = {str(path.relative_to(ROOT)) for path in files if WALL.search(path.read_text())}
    assert found == FOR_PEOPLE
