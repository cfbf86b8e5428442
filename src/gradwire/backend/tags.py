"""Tags: how the messages of many groups, operations and parts share one wire without meeting.

A tag has 64 bits: the group (20), what kind of message it is (2), and 42 bits that each kind divides for itself.
Numbers wrap around; they only have to differ among what is under way between two ranks at once.
"""

from __future__ import annotations

from typing import Final

from gradwire.errors import ConfigError

GROUPS_MOST: Final = 1 << 20
PARTS_MOST: Final = 1 << 16
USER_TAGS: Final = 1 << 30
_COLLECTIVE, _OPENING, _PAYLOAD, _NOTICE = range(4)
_NUMBERS: Final = 1 << 26
_LETTERS: Final = 1 << 12


def collective(group: int, number: int, part: int) -> int:
    """Part `part` of the group's collective `number`; part 0 is the opening message."""
    return _join(group, _COLLECTIVE, (number % _NUMBERS) * PARTS_MOST + part)


def opening(group: int, tag: int, number: int) -> int:
    """The first message of the `number`-th send with the user's `tag` between two ranks."""
    return _join(group, _OPENING, tag * _LETTERS + number % _LETTERS)


def payload(group: int, tag: int, number: int) -> int:
    """What did not fit the opening message of that send."""
    return _join(group, _PAYLOAD, tag * _LETTERS + number % _LETTERS)


def notice(group: int) -> int:
    """Word that the group has failed."""
    return _join(group, _NOTICE, 0)


def roll_call(group: int, number: int, answer: bool) -> int:
    """A monitored barrier's "here", and the first rank's answer to it."""
    return _join(group, _NOTICE, (number % _NUMBERS) * 4 + 2 + answer)


def board(group: int, step: int) -> int:
    """A message of the hand-over of shared memory, before the group's first operation."""
    return _join(group, _NOTICE, step * 4 + 1)


def check_user_tag(tag: int) -> int:
    if not 0 <= tag < USER_TAGS:
        raise ConfigError(f"tag: {tag} lies outside 0..{USER_TAGS - 1}")
    return tag


def _join(group: int, kind: int, rest: int) -> int:
    return (group << 44) | (kind << 42) | rest
