"""Level: how strongly a bucket is compressed, as one value with a text form that users write and ranks exchange.

A level is a chain of stages in a fixed order: prune, then sparsify or factorise, then quantise, then lossless. Its text
joins the stages with "+": "fp16", "int8", "topk:0.01+int8", "prune:0.5+topk:0.01+fp16+zstd", "lowrank:4", "off".
Parsing is strict. The text gives six significant digits of a share; up to these it parses back to the same level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from gradwire.errors import ConfigError
from gradwire.suggest import did_you_mean

Values = Literal["fp32", "fp16", "bf16", "int8", "int4", "int2"]
Select = Literal["all", "topk", "exactk", "sharedk", "randk", "lowrank"]

VALUES: Final[tuple[Values, ...]] = ("fp32", "fp16", "bf16", "int8", "int4", "int2")
SPARSE: Final[tuple[Select, ...]] = ("topk", "exactk", "sharedk", "randk")
STAGES: Final = ("off", "prune", *SPARSE, "lowrank", *VALUES[1:], "zstd")


def bits(values: Values) -> int:
    """Bits of one value of a format: 8 of int8."""
    return int(values.lstrip("abcdefghijklmnopqrstuvwxyz"))


@dataclass(frozen=True, slots=True)
class Level:
    """What is sent (`select` with `ratio` or `rank`, of what `prune` leaves) and in which format (`values`)."""

    select: Select = "all"
    ratio: float = 1.0
    rank: int = 0
    values: Values = "fp32"
    prune: float = 0.0
    lossless: bool = False

    @property
    def off(self) -> bool:
        """Whether this is plain DDP: values are sent unchanged, without rounding."""
        return self == Level()

    @property
    def sparse(self) -> bool:
        return self.select in SPARSE

    @property
    def lossy(self) -> bool:
        return not (self.select == "all" and self.values == "fp32" and self.prune == 0)

    def __str__(self) -> str:
        stages = [f"prune:{self.prune:g}"] if self.prune else []
        if self.select == "lowrank":
            stages.append(f"lowrank:{self.rank}")
        elif self.sparse:
            stages.append(f"{self.select}:{self.ratio:g}")
        if self.values != "fp32":
            stages.append(self.values)
        if self.lossless:
            stages.append("zstd")
        return "+".join(stages) or "off"

    @classmethod
    def parse(cls, text: str, setting: str = "level") -> Level:
        """Parse a level's text; ConfigError names `setting`, the wrong stage and what is allowed."""
        if text.strip().lower() in ("off", "fp32", "none"):
            return cls()
        level: dict[str, object] = {}
        order = -1
        for stage in text.strip().lower().split("+"):
            position, fields = _parse_stage(stage.strip(), setting, text)
            if position <= order:
                raise ConfigError(
                    f"{setting}: {stage!r} is repeated or in the wrong order in {text!r}; "
                    "the order is prune, topk/exactk/sharedk/randk/lowrank, fp16/bf16/int8/int4/int2, zstd"
                )
            order = position
            level |= fields
        return cls(**level)  # type: ignore[arg-type]


def _parse_stage(stage: str, setting: str, text: str) -> tuple[int, dict[str, object]]:
    name, _, argument = stage.partition(":")
    if name == "prune":
        return 0, {"prune": _fraction(name, argument, setting)}
    if name in SPARSE:
        return 1, {"select": name, "ratio": _fraction(name, argument, setting)}
    if name == "lowrank":
        if not argument.isdecimal() or not 1 <= int(argument) <= 256:
            raise ConfigError(f"{setting}: lowrank needs a rank from 1 to 256, as in lowrank:4, not {argument!r}")
        return 1, {"select": "lowrank", "rank": int(argument)}
    if name in VALUES and name != "fp32" and not argument:
        return 2, {"values": name}
    if name == "zstd" and not argument:
        return 3, {"lossless": True}
    raise ConfigError(
        f"{setting}: {stage!r} in {text!r} is not a stage; {did_you_mean(name, STAGES)}allowed are off, prune:P, "
        "topk:R, exactk:R, sharedk:R, randk:R, lowrank:N, fp16, bf16, int8, int4, int2, zstd"
    )


def _fraction(name: str, argument: str, setting: str) -> float:
    try:
        value = float(argument)
    except ValueError:
        value = -1.0
    if not 0 < float(f"{value:g}") < 1:  # the text of a level has six digits
        raise ConfigError(f"{setting}: {name} needs a share between 0 and 1, as in {name}:0.01, not {argument!r}")
    return value
