"""Arguments: what `attach` and `attach_fsdp` take beside a configuration, checked and put into it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from gradwire.config import AUTO_PERIOD, OUTER_KINDS, Config, checked, resolve
from gradwire.errors import ConfigError
from gradwire.suggest import did_you_mean


def given(
    config: Config | str | Path | Mapping[str, Any] | None,
    level: str | None,
    record: str | Path | None,
    lossiest: str | None = None,
) -> Config:
    """The effective configuration; `level`, `record` and `lossiest` replace the settings of that name."""
    effective = resolve(config)
    if (level, lossiest) != (None, None):
        effective = with_level(effective, level, lossiest)
    return effective if record is None else with_record(effective, record)


def with_level(config: Config, level: str | None, lossiest: str | None = None) -> Config:
    """The same configuration at another level or with another controller, and with another cap, where not None."""
    changes = {}
    if level is not None:
        changes["level"] = _text(level, "level", 'as in level="int8"')
    if lossiest is not None:
        changes["lossiest"] = _text(lossiest, "lossiest", 'as in lossiest="int4"')
    return checked(msgspec.structs.replace(config, **changes))


def with_plan(config: Config, planner: str) -> Config:
    """The same configuration with a planner."""
    return checked(msgspec.structs.replace(config, plan=_text(planner, "plan", 'as in plan="loadaware"')))


def with_local_steps(config: Config, sync_every: int | str | None, outer: str | None = None) -> Config:
    """The same configuration with local steps, and with another outer optimizer, where not None."""
    changes: dict[str, Any] = {}
    if sync_every is not None:
        whole = isinstance(sync_every, int) and not isinstance(sync_every, bool) and sync_every >= 1
        if not whole and sync_every != AUTO_PERIOD:
            raise ConfigError(
                f"sync_every: {sync_every!r} is not valid; it must be a whole number >= 1 of optimizer steps, or "
                '"auto"; leave it out to synchronise gradients at every step'
            )
        changes["sync_every"] = sync_every
    if outer is not None:
        if outer not in OUTER_KINDS:
            hint = did_you_mean(outer, OUTER_KINDS) if isinstance(outer, str) else ""
            raise ConfigError(
                f"outer: {outer!r} is not an outer optimizer; {hint}write nesterov, average, or a function that makes "
                "a torch optimizer for given parameters"
            )
        changes["outer"] = msgspec.structs.replace(config.outer, kind=outer)
    return checked(msgspec.structs.replace(config, **changes))


def with_round_seconds(config: Config, sync_seconds: float | None) -> Config:
    """The same configuration with rounds of so many seconds, where not None."""
    if sync_seconds is None:
        return config
    number = isinstance(sync_seconds, int | float) and not isinstance(sync_seconds, bool)
    if not number or not 0 < sync_seconds < math.inf:
        raise ConfigError(
            f"sync_seconds: {sync_seconds!r} is not valid; it must be a number > 0 of seconds, as in 30; leave it out "
            "for rounds of sync_every steps, and both to synchronise gradients at every step"
        )
    return checked(msgspec.structs.replace(config, sync_seconds=float(sync_seconds)))


def with_fragments(config: Config, num_fragments: int | None, fragment_sync_delay: int | None) -> Config:
    """The same configuration with other fragments of local steps, where not None."""
    given = {"num_fragments": num_fragments, "fragment_sync_delay": fragment_sync_delay}
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        return config
    for name, value in changes.items():
        least = 1 if name == "num_fragments" else 0
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{name}: {value!r} is not valid; it must be a whole number >= {least}")
    return checked(msgspec.structs.replace(config, **changes))


def with_record(config: Config, record: str | os.PathLike[str]) -> Config:
    """The same configuration with its events recorded in a directory."""
    if not isinstance(record, str | os.PathLike):
        raise ConfigError(f'record: {record!r} is not a path; write a directory, as in record="runs/first"')
    return msgspec.structs.replace(config, record=str(os.fspath(record)))


def _text(given: object, setting: str, example: str) -> str:
    if not isinstance(given, str):
        raise ConfigError(f"{setting}: {given!r} is not valid; it must be text, {example}")
    return given


def with_transport(config: Config, kind: str) -> Config:
    """The same configuration over another transport."""
    kinds = ("auto", "group", "ltp", "tcp")
    if kind not in kinds:
        hint = did_you_mean(kind, kinds)
        raise ConfigError(f"transport: {kind!r} is not a transport; {hint}write auto, group, ltp or tcp")
    transport = msgspec.structs.replace(config.transport, kind=kind)
    return checked(msgspec.structs.replace(config, transport=transport))


def check_fragments_used(config: Config) -> None:
    """ConfigError where fragments are configured without local steps."""
    if not config.local_steps and (config.num_fragments > 1 or config.fragment_sync_delay):
        name = "num_fragments" if config.num_fragments > 1 else "fragment_sync_delay"
        raise ConfigError(
            f"{name}: {getattr(config, name)} is a setting of local steps; pass sync_every and the optimizer too: "
            "attach(model, optimizer=opt, sync_every=20, num_fragments=4, fragment_sync_delay=2)"
        )
