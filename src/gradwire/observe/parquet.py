"""Parquet: a recording as tables, one for each kind of event, with `rank` and `time` before the event's own fields.

Nested values (configurations, trees, links) become JSON text, so that all columns are scalar. Rows are written in
groups of BATCH; memory does not grow with the recording.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from gradwire.events import Event
from gradwire.observe.reader import Record

BATCH: Final = 10_000
_PLAIN: Final = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}


def export(records: Iterable[Record], folder: Path) -> dict[Path, int]:
    """Write the tables; returns the number of rows of each file."""
    folder.mkdir(parents=True, exist_ok=True)
    tables: dict[str, _Table] = {}
    try:
        for rank, time, event in records:
            tag = str(event.__struct_config__.tag)
            if tag not in tables:
                tables[tag] = _Table(folder / f"{tag}.parquet", type(event))
            tables[tag].add(rank, time, event)
    finally:
        for table in tables.values():
            table.close()
    return {table.path: table.rows for table in tables.values()}


class _Table:
    def __init__(self, path: Path, kind: type[Event]) -> None:
        self.path, self.rows = path, 0
        self._fields = [field.name for field in msgspec.structs.fields(kind)]
        columns = [("rank", pa.int64()), ("time", pa.float64())]
        columns += [(field.name, _type(field.type)) for field in msgspec.structs.fields(kind) if field.name != "rank"]
        self._schema = pa.schema(columns)
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._waiting: list[dict[str, Any]] = []

    def add(self, rank: int, time: float, event: Event) -> None:
        row = {name: _value(getattr(event, name)) for name in self._fields}
        self._waiting.append({**row, "rank": rank, "time": time})
        self.rows += 1
        if len(self._waiting) >= BATCH:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_pylist(self._waiting, schema=self._schema))
        self._waiting = []


def _type(hint: Any) -> pa.DataType:
    """A scalar column for a scalar field (also `float | None`); text for the rest."""
    options = [option for option in getattr(hint, "__args__", (hint,)) if option is not type(None)]
    return _PLAIN.get(options[0], pa.string()) if len(options) == 1 and hint not in (dict, tuple) else pa.string()


def _value(value: object) -> object:
    if value is None or isinstance(value, (int, float, str)):
        return value
    return msgspec.json.encode(value).decode()
