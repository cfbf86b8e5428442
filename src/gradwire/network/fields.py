"""Fields: reads a TOML table field by field. What is left is an unknown field; every error names its position."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from gradwire.errors import ConfigError
from gradwire.network.link_spec import REORDER_BY, Burst, LinkSpec
from gradwire.network.rate_trace import RateTrace, load_trace
from gradwire.units import Bytes, Rate, Seconds, parse_bytes, parse_fraction, parse_rate, parse_seconds

_MISSING: Final = object()


class Fields:
    """One table, its position in the file (`where`), and the fields not read yet."""

    def __init__(self, table: dict[str, Any], where: str, base: Path) -> None:
        self.where = where
        self._unread = dict(table)
        self._known: list[str] = []
        self._base = base

    def take(self, name: str, read: Callable[..., Any], default: Any = _MISSING) -> Any:
        """The value of `name`, read by `read` (a type, or a parser that takes the setting's name)."""
        self._known.append(name)
        value = self._unread.pop(name, _MISSING)
        setting = f"{self.where}.{name}"
        if value is _MISSING:
            if default is _MISSING:
                raise ConfigError(f"{setting}: is missing; add it")
            return default
        if read in (str, int, bool):
            if type(value) is not read:
                raise ConfigError(f"{setting}: must be of type {read.__name__}, but it is {value!r}")
            return value
        try:
            return read(value, setting) if read.__module__ == "gradwire.units" else read(value)
        except (TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{setting}: {str(error) or f'{value!r} is not a valid value'}") from error

    def choice(self, name: str, allowed: Iterable[str], default: str) -> Any:
        value = self.take(name, str, default)
        if value not in allowed:
            raise ConfigError(f"{self.where}.{name}: {value!r} is not one of {', '.join(allowed)}")
        return value

    def table(self, name: str) -> Fields | None:
        value = self.take(name, lambda v: v, None)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ConfigError(f"{self.where}.{name}: must be a table: write [{name}]")
        return self.child(value, f"{self.where}.{name}")

    def tables(self, name: str) -> list[Fields]:
        value = self.take(name, lambda v: v, [])
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            raise ConfigError(f"{self.where}.{name}: must be a list of tables: write [[{name}]]")
        return [self.child(entry, f"{self.where}.{name}[{index}]") for index, entry in enumerate(value)]

    def child(self, table: dict[str, Any], where: str) -> Fields:
        return Fields(table, where, self._base)

    def rest(self) -> dict[str, Any]:
        rest, self._unread = self._unread, {}
        return rest

    def link_value(self, name: str) -> Any:
        """One of LinkSpec's values, or None."""
        return self.take(name, _READERS[name], None) if name != "burst" else self._burst()

    def trace(self) -> RateTrace | None:
        path = self.take("trace", str, None)
        return load_trace(self._base / path, f"{self.where}.trace") if path else None

    def _burst(self) -> Burst | None:
        table = self.table("burst")
        if table is None:
            return None
        burst = Burst(
            enter=table.take("enter", parse_fraction),
            leave=table.take("leave", parse_fraction),
            loss=table.take("loss", parse_fraction, 1.0),
        )
        table.finish()
        return burst

    def finish(self) -> None:
        if not self._unread:
            return
        unknown = next(iter(self._unread))
        close = difflib.get_close_matches(unknown, self._known, 1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; known fields: {', '.join(self._known)}"
        raise ConfigError(f"{self.where}.{unknown}: unknown field{hint}")


_READERS: dict[str, Callable[..., Any]] = {
    "rate": parse_rate,
    "delay": parse_seconds,
    "jitter": parse_seconds,
    "loss": parse_fraction,
    "queue": parse_bytes,
    "reorder": parse_fraction,
    "reorder_by": parse_seconds,
    "duplicate": parse_fraction,
}


def read_spec(fields: Fields) -> LinkSpec:
    rate: Rate | None = fields.link_value("rate")
    trace = fields.trace()
    if rate is not None and trace is not None:
        raise ConfigError(f"{fields.where}.trace: replaces rate; give only one of them")
    delay: Seconds | None = fields.link_value("delay")
    jitter: Seconds | None = fields.link_value("jitter")
    queue: Bytes | None = fields.link_value("queue")
    burst: Burst | None = fields.link_value("burst")
    reorder_by: Seconds | None = fields.link_value("reorder_by")
    try:
        return LinkSpec(
            rate=Rate("inf") if rate is None else rate,
            delay=delay or Seconds(0),
            jitter=jitter or Seconds(0),
            loss=fields.link_value("loss") or 0.0,
            burst=burst,
            queue=queue,
            mtu=fields.take("mtu", int, 1500),
            trace=trace,
            reorder=fields.link_value("reorder") or 0.0,
            reorder_by=REORDER_BY if reorder_by is None else reorder_by,
            duplicate=fields.link_value("duplicate") or 0.0,
        )
    except ConfigError as error:
        if str(error).startswith(fields.where):
            raise
        raise ConfigError(f"{fields.where}.{error}") from error
