"""Tags: keeps the messages of many groups, operations and parts on one wire apart.

A tag has 64 bits: the group (20), the kind of message (2), and 42 bits with a layout of their own per kind.
Numbers wrap around; they only have to differ between concurrent messages of two ranks.
"""

from __future__ import annotations

from typing import Final

from gradwire.errors import ConfigError

GROUPS_LIMIT: Final = 1 << 20
PARTS_LIMIT: Final = 1 << 16
USER_TAGS: Final = 1 << 30
_COLLECTIVE, _OPENING, _PAYLOAD, _NOTICE = range(4)
_NUMBERS: Final = 1 << 26
_SENDS: Final = 1 << 12


def collective(group: int, number: int, part: int) -> int:
    """Part `part` of the group's collective `number`; part 0 is the opening message."""
    return _join(group, _COLLECTIVE, (number % _NUMBERS) * PARTS_LIMIT + part)


def opening(group: int, tag: int, number: int) -> int:
    """The first message of the `number`-th send with the user's `tag` between two ranks."""
    return _join(group, _OPENING, tag * _SENDS + number % _SENDS)


def payload(group: int, tag: int, number: int) -> int:
    """What did not fit the opening message of that send."""
    return _join(group, _PAYLOAD, tag * _SENDS + number % _SENDS)


def notice(group: int) -> int:
    """The notice that the group has failed."""
    return _join(group, _NOTICE, 0)


def monitored_barrier(group: int, number: int, result: bool) -> int:
    """A monitored barrier's "here", and the result that rank 0 sends."""
    return _join(group, _NOTICE, (number % _NUMBERS) * 4 + 2 + result)


def shm_setup(group: int, step: int) -> int:
    """A message of the set-up of shared memory, before the group's first operation."""
    return _join(group, _NOTICE, step * 4 + 1)


def check_user_tag(tag: int) -> int:
    if not 0 <= tag < USER_TAGS:
        raise ConfigError(f"tag: {tag} is outside 0..{USER_TAGS - 1}")
    return tag


def _join(group: int, kind: int, rest: int) -> int:
    return (group << 44) | (kind << 42) | rest
