"""Configuration: one frozen struct per section; argument > environment > file > default.

The field `compress.chunk` is the variable GRADWIRE_COMPRESS_CHUNK and the TOML key `chunk` in `[compress]`; the
top-level `level` is GRADWIRE_LEVEL. The file is given by the argument or by GRADWIRE_CONFIG.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec

from gradwire.decide.registry import controller_names, is_controller
from gradwire.decide.summable_controller import summable
from gradwire.decide.warmup import WARM_STEPS
from gradwire.errors import ConfigError
from gradwire.level import Level
from gradwire.plan.planners.registry import PLANNERS
from gradwire.suggest import did_you_mean
from gradwire.transport.config import TransportConfig

PREFIX = "GRADWIRE_"
# Defaults that depend on other settings, in words for errors.
DEFAULTS: Final = {"compress.warmup": f"{WARM_STEPS}, and 0 with a plan or local steps"}

Positive = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
# The value of `sync_every` that leaves the number of local steps to gradwire.
AUTO_PERIOD: Final = "auto"
# The value of `plan` that leaves it to gradwire whether sums are formed along trees.
AUTO_PLAN: Final = "auto"


class CompressConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How gradients are encoded."""

    # Encoded megabytes per chunk of a bucket: small enough for chunks to overlap, large enough to fill a link.
    chunk: Positive = 4.0
    # int8, int4 and int2: "stochastic" is unbiased (int2: where it does not saturate), "nearest" has the smaller error;
    # error feedback corrects both.
    rounding: Literal["stochastic", "nearest"] = "stochastic"
    # DGC's momentum correction for sparse levels; use it with an SGD optimizer without momentum.
    momentum: Share = 0.0
    # Warm-up steps of a fixed level: the share of a sparse level falls from 25 % to the configured one, as DGC's does;
    # a low-rank level begins with int4. Where none is given: 100, and 0 with a plan or local steps.
    warmup: Count | None = None
    # Where gradients of a GPU are encoded: "host" copies them to host memory; "gpu" encodes them on the GPU by triton's
    # kernels (the extra gradwire[gpu]), so that only frames are copied. docs/gpu.md.
    encode: Literal["host", "gpu"] = "host"
    # Where residuals of gradients of a GPU are: "auto" is where they are encoded; "host" with encode = "gpu" leaves the
    # GPU's memory to the model, and copies them to the GPU and back at every step.
    residual_memory: Literal["auto", "host", "gpu"] = "auto"
    # "bfloat16" keeps residuals in half the memory; they are rounded at random, without bias (compress/residual.py).
    residual_type: Literal["float32", "bfloat16"] = "float32"
    # "hold" keeps the gradient of pruned elements in the residual, "zero" sets pruned weights to zero.
    prune: Literal["hold", "zero"] = "hold"


class PlanningConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How plans are made and changed, where `plan` names a planner."""

    # A JSON file of sites and links, in the format of `gradwire plan`; one site per rank.
    net: str = ""
    # A JSON file of site names and their ranks, read by rank 0; without it GRADWIRE_SITE names each rank's site.
    sites: str = ""
    # Change the plan when measurements of the links show a better one.
    aware: bool = True
    # Send probes over idle links, to measure those too.
    probe: bool = True
    # A new plan must be predicted to save at least this share of the time.
    gain: Share = 0.1
    # Least seconds between two changes of the plan.
    interval: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    # Members relay for pairs without a link in `net`; False leaves them to the network's routers.
    relay: bool = True
    # When a rank is lost: False stops every rank with LinkError; True continues without it, see docs/planning.md.
    elastic: bool = False
    # Seconds for which a disconnected rank tries to rejoin, where `Handle.hand_over` was called; 0: never.
    rejoin: Annotated[float, msgspec.Meta(ge=0)] = 300.0
    # Ranks that the job may have at most: those beyond the ranks of the start may join later. 0: none may.
    max_ranks: Count = 0
    # Send pieces by side routes where the plan has any and the direct link is busy.
    side: bool = True

    def places(self, world_size: int) -> int:
        """How many ranks a job may have that starts with so many."""
        return max(self.max_ranks, world_size)


OUTER_KINDS = ("nesterov", "average")


class OuterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the global weights follow the ranks' weights, where `sync_every` or `sync_seconds` allows local steps."""

    # "nesterov": SGD with Nesterov momentum; "average": the mean of the ranks' weights.
    kind: Literal["nesterov", "average"] = "nesterov"
    # Of "nesterov". Measured best for two ranks and rounds of 20 steps: a character GPT, AdamW
    # (docs/howto/local-steps.md).
    lr: Positive = 0.7
    momentum: Share = 0.6


class ObserveConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is checked and recorded."""

    # All ranks compare a hash of the restored gradients every this many steps; 0: never.
    verify: Count = 0
    # What recordings contain: "steps", or "buckets" for every bucket of every step too.
    detail: Literal["steps", "buckets"] = "steps"


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole configuration."""

    # A level such as "int8" or "topk:0.01+int8", or a controller that chooses levels: "auto", "netsense", "dc2".
    level: str = "auto"
    # The lossiest level that a controller may choose, as in "int4" or "topk:0.03" (docs/lossiness.md); "": no limit.
    lossiest: str = ""
    # The share of additional steps that `auto` may spend to make each step shorter: 0.05 keeps the accuracy at equal
    # epochs, 1.0 allows twice the steps where they take less than half the time (docs/lossiness.md).
    extra_steps: Annotated[float, msgspec.Meta(ge=0)] = 0.05
    # Directory for the files of every rank's events (docs/events.md); empty: nothing is recorded.
    record: str = ""
    # Local steps: ranks train alone for this many optimizer steps, then synchronise their weights
    # (docs/howto/local-steps.md); 0: gradients are synchronised at every step, as in plain DDP; "auto": chosen by the
    # measured network, with synchronous training as one of the choices.
    sync_every: Count | Literal["auto"] = 0
    # Local steps by time, for unequal machines, instead of sync_every: a round has so many seconds, in which each rank
    # makes as many steps as it can; its part in the mean is weighted by them. 0: rounds have a number of steps.
    sync_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    # With sync_seconds: the share of a round for which ranks stand still at its end for one that is in a longer step;
    # then they go on without it, and its steps count in a later round.
    sync_wait: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    # Layers in this many groups, which are synchronised one after another at equal distances in a round of local steps.
    num_fragments: Annotated[int, msgspec.Meta(ge=1)] = 1
    # Local steps between sending a fragment and applying the result; training goes on meanwhile. 0: it waits. At most
    # sync_every / num_fragments; with sync_seconds it ends when the next fragment is sent.
    fragment_sync_delay: Count = 0
    # The share of a rank's own progress since sending that it keeps when the result is applied.
    fragment_progress: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    # A planner ("loadaware", "star", "ring", ...): gradients are summed along its trees over LTP or TCP. "": no plan,
    # sums are formed between all ranks. "auto" begins without a plan and changes to trees while training with an
    # adaptive level, where measured links predict that steps become shorter and steps confirm it (docs/planning.md);
    # never with transport = "group".
    plan: str = AUTO_PLAN
    planning: PlanningConfig = msgspec.field(default_factory=PlanningConfig)
    compress: CompressConfig = msgspec.field(default_factory=CompressConfig)
    transport: TransportConfig = msgspec.field(default_factory=TransportConfig)
    observe: ObserveConfig = msgspec.field(default_factory=ObserveConfig)
    outer: OuterConfig = msgspec.field(default_factory=OuterConfig)

    @property
    def warmup(self) -> int:
        """Warm-up steps of a fixed level."""
        if self.compress.warmup is not None:
            return self.compress.warmup
        return 0 if self.planner or self.local_steps else WARM_STEPS

    @property
    def planner(self) -> str:
        """The planner of a plan that is in force from the first step on; empty where there is none."""
        return "" if self.plan == AUTO_PLAN else self.plan

    @property
    def local_steps(self) -> str:
        """The setting that allows local steps, with its value: "sync_every: 20"; empty where steps are synchronous."""
        if self.sync_seconds:
            return f"sync_seconds: {self.sync_seconds:g}"
        return f"sync_every: {self.sync_every}" if self.sync_every else ""

    @property
    def voted_rounds(self) -> bool:
        """Whether the number of local steps is chosen along an elastic plan (local_steps/voted_rounds.py)."""
        return self.sync_every == AUTO_PERIOD and bool(self.planner) and self.planning.elastic

    @property
    def cap(self) -> Level | None:
        """The setting `lossiest` as a level; None where there is no limit."""
        return Level.parse(self.lossiest, setting="lossiest") if self.lossiest else None

    def to_dict(self) -> dict[str, object]:
        return dict(msgspec.to_builtins(self))


def resolve(
    given: Config | str | Path | Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None
) -> Config:
    """The effective configuration. `given` may be a Config, a level such as "int8", a TOML file or a mapping."""
    if isinstance(given, Config):
        return checked(_convert(_builtins(given)))
    environment = os.environ if environment is None else environment
    argument, path = _argument(given)
    path = path or environment.get(PREFIX + "CONFIG")
    merged: dict[str, Any] = _read_file(Path(path)) if path else {}
    for source in (_read_environment(environment), argument):
        merged = _merge(merged, source)
    return checked(_convert(merged))


def checked(config: Config) -> Config:
    """Check names and levels, so that a mistake is found here and not in the first backward."""
    if config.planner and config.plan not in PLANNERS:
        hint, known = did_you_mean(config.plan, (*PLANNERS, AUTO_PLAN)), ", ".join(PLANNERS)
        raise ConfigError(f"plan: {config.plan!r} is not a planner; {hint}choose one of {known}, or {AUTO_PLAN}")
    if config.plan == AUTO_PLAN and config.planning.elastic:
        raise ConfigError(
            "planning.elastic: ranks can be lost and rejoin only where a plan is in force from the first step on, and "
            'plan is "auto"; name a planner, as in plan = "loadaware", or set planning.elastic to false'
        )
    if config.compress.residual_memory == "gpu" and config.compress.encode == "host":
        raise ConfigError(
            'compress.residual_memory: "gpu" needs compress.encode = "gpu": the processor adds residuals where it '
            'encodes, and would copy them to host memory and back at every step; set compress.encode to "gpu" '
            f'({PREFIX}COMPRESS_ENCODE), or leave compress.residual_memory at "auto"'
        )
    if config.planning.max_ranks and not (config.planner and config.planning.elastic and config.planning.rejoin):
        raise ConfigError(
            f"planning.max_ranks: {config.planning.max_ranks} lets ranks join while the job runs, which needs a "
            "planner's name in plan, planning.elastic = true and planning.rejoin above 0; set them, or leave it out"
        )
    if config.planner and config.compress.momentum:
        raise ConfigError(
            f"compress.momentum: {config.compress.momentum:g} cannot be combined with plan = {config.plan!r}; set it "
            "to 0 and use the optimizer's momentum"
        )
    if not is_controller(config.level):
        try:
            Level.parse(config.level)
        except ConfigError as error:
            hint = did_you_mean(config.level, controller_names())
            raise ConfigError(f"{error}; {hint}controllers are {', '.join(controller_names())}") from error
    if config.lossiest:
        _check_cap(config)
    if config.local_steps:
        _check_local_steps(config)
    for setting, value in _numbers(config):
        if not math.isfinite(value):
            raise ConfigError(f"{setting}: {value} is not valid; it must be a finite number")
    return config


def _check_cap(config: Config) -> None:
    cap = Level.parse(config.lossiest, setting="lossiest")
    if not is_controller(config.level):
        raise ConfigError(
            f"lossiest: {config.lossiest!r} limits what a controller chooses, but level = {config.level!r} is fixed; "
            f"leave lossiest ({PREFIX}LOSSIEST) empty, or choose a controller: {', '.join(controller_names())}"
        )
    if config.planner and summable(cap) != cap:
        raise ConfigError(
            f"lossiest: {cap} cannot be summed inside the trees of plan = {config.plan!r}; write {summable(cap)}"
        )


def _check_local_steps(config: Config) -> None:
    if config.sync_seconds and config.sync_every:
        raise ConfigError(
            f"{config.local_steps} cannot be combined with sync_every = {config.sync_every!r}: a round ends by time or "
            f"by steps; leave one out ({PREFIX}SYNC_SECONDS, {PREFIX}SYNC_EVERY), or set it to 0"
        )
    if config.sync_seconds >= config.transport.timeout:
        raise ConfigError(
            f"{config.local_steps} is not less than transport.timeout = {config.transport.timeout:g}, for which ranks "
            f"wait for each other: make rounds shorter, or set transport.timeout ({PREFIX}TRANSPORT_TIMEOUT)"
        )
    if config.planner:
        _check_local_plan(config)
    if config.compress.momentum:
        raise ConfigError(
            f"{config.local_steps} cannot be combined with compress.momentum = {config.compress.momentum:g}"
            ", which corrects the momentum of gradients; set compress.momentum to 0 (outer.momentum is another setting)"
        )
    _check_fragments(config)


def _check_local_plan(config: Config) -> None:
    """Local steps along a plan's trees; ranks that may be lost and rejoin need rounds that all end alike."""
    if config.sync_seconds:
        raise ConfigError(
            f"{config.local_steps} cannot be combined with plan = {config.plan!r}: ranks agree on the end of a round "
            f"by messages between all of them; use sync_every ({PREFIX}SYNC_EVERY), or leave plan empty"
        )
    if not config.planning.elastic:
        return
    if config.num_fragments > 1 or config.fragment_sync_delay:
        raise ConfigError(
            f"num_fragments: {config.num_fragments} and fragment_sync_delay = {config.fragment_sync_delay} cannot be "
            "combined with planning.elastic: a rank rejoins at an end of a round, where all weights are exchanged and "
            "training waits; leave both out, or set planning.elastic to false"
        )


def _check_fragments(config: Config) -> None:
    every, count, delay = config.sync_every, config.num_fragments, config.fragment_sync_delay
    if delay and config.compress.prune == "zero":
        raise ConfigError(
            f"fragment_sync_delay: {delay} cannot be combined with compress.prune = 'zero', which changes the global "
            "weights while they are sent; use 'hold'"
        )
    if config.sync_seconds:
        return  # fragments are sent by time, and a delay that is too long ends when the next one is sent
    if every == AUTO_PERIOD:
        if count > 1 or delay:
            raise ConfigError(
                "num_fragments: fragments need a fixed number of local steps, and sync_every is 'auto'; set sync_every "
                "to a number, as in 50, or leave num_fragments and fragment_sync_delay out"
            )
        return
    if count > every:
        raise ConfigError(
            f"num_fragments: {count} is more than sync_every = {every}: each fragment is sent after another step; "
            f"set it to {every} or less"
        )
    if delay > every // count:
        raise ConfigError(
            f"fragment_sync_delay: {delay} is too long: a fragment is applied before the next one is sent, which with "
            f"sync_every = {every} and num_fragments = {count} is {every // count} steps later; set it to "
            f"{every // count} or less"
        )


def _numbers(config: Config) -> Iterator[tuple[str, float]]:
    for section, settings in config.to_dict().items():
        if isinstance(settings, float):
            yield section, settings
        if isinstance(settings, dict):
            yield from ((f"{section}.{name}", value) for name, value in settings.items() if isinstance(value, float))


def _argument(given: str | Path | Mapping[str, Any] | None) -> tuple[dict[str, Any], str | None]:
    if given is None:
        return {}, None
    if isinstance(given, Mapping):
        return dict(given), None
    if not isinstance(given, str | Path):
        raise ConfigError(
            f'config: {given!r} is not a configuration; give a level as text ("int8", "topk:0.01"), the path of a '
            "TOML file, a mapping of settings or a gradwire.Config"
        )
    if isinstance(given, Path) or given.endswith(".toml"):
        return {}, str(given)
    return {"level": given}, None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"configuration file {path}: {error.strerror}; give the path of a TOML file that can be read (argument "
            f"config, or {PREFIX}CONFIG)"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"configuration file {path} is not valid TOML: {error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"configuration file {path} is not valid TOML: {error}; save it as UTF-8") from error


def _read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """The values of all GRADWIRE_* variables that name a field; ConfigError for an unknown one."""
    found: dict[str, Any] = {}
    fields = _fields()
    for variable, text in environment.items():
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES:
            continue
        if variable not in fields:
            hint = did_you_mean(variable, [*fields, *sorted(OTHER_VARIABLES)])
            raise ConfigError(f"environment variable {variable} is not a setting; {hint}known are {', '.join(fields)}")
        section, name = fields[variable]
        target = found.setdefault(section, {}) if section else found
        target[name] = text
    return found


# Variables with the prefix that are not configuration fields.
OTHER_VARIABLES = frozenset(
    PREFIX + name
    for name in (
        *("CONFIG", "ISA", "HOST", "SITE", "BACKEND", "CI", "LAB", "LAB_START", "LAB_PID"),
        *("IFNAME", "PORTS", "ADVERTISE", "SECRET", "SECRET_FILE", "WIRE", "DASHBOARD_TOKEN", "RUNTIME_DIR", "REJOIN"),
        *("PACE_BYTES", "STORE", "ANNOUNCE", "CUDA", "BACKEND_BASE", "DILATE", "DILATE_ORIGIN"),
    )
)


def _fields() -> dict[str, tuple[str, str]]:
    """Variable name -> (section, field); the section of a top-level field is empty."""
    names: dict[str, tuple[str, str]] = {PREFIX + "TRANSPORT": ("transport", "kind")}
    for field in msgspec.structs.fields(Config):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            for inner in msgspec.structs.fields(field.type):
                names[f"{PREFIX}{field.name}_{inner.name}".upper()] = (field.name, inner.name)
        else:
            names[f"{PREFIX}{field.name}".upper()] = ("", field.name)
    return names


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = _merge(dict(merged[key]), value)
        else:
            merged[key] = value
    return merged


def _builtins(config: Config) -> dict[str, Any]:
    """The fields of a Config as plain values; its constructor does not check them."""
    try:
        return config.to_dict()
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"configuration: {config!r} has a value that no setting accepts: {error}") from error


def _convert(fields: dict[str, Any]) -> Config:
    try:
        return msgspec.convert(fields, Config, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), fields)) from error


def _explain(text: str, fields: dict[str, Any]) -> str:
    """msgspec's message with the setting, the value that was found, and what is allowed."""
    found = re.fullmatch(r"(.*) - at `\$\.?(.*)`", text)
    what, setting = found.groups() if found else (text, "")
    section, _, name = setting.rpartition(".")
    structure = _section(section if "unknown field" not in what else setting)
    if structure is None:
        return f"configuration: {text}"
    names = {field.name: field for field in msgspec.structs.fields(structure)}
    if "unknown field" in what:
        unknown = what.split("`")[1]
        hint = did_you_mean(unknown, names)
        return f"{setting or 'configuration'}: there is no setting {unknown!r}; {hint}known are {', '.join(names)}"
    if name not in names:
        return f"configuration: {text}"
    given = (fields.get(section, {}) if section else fields).get(name)
    choices = get_args(names[name].type) if get_origin(names[name].type) is Literal else ()
    if name == "sync_every":
        wanted = f"a whole number >= 0, or {AUTO_PERIOD!r}"
    else:
        wanted = f"one of {', '.join(map(repr, choices))}" if choices else _in_words(what)
    default = names[name].default
    usual = "" if default is msgspec.NODEFAULT else f"; the default is {DEFAULTS.get(setting, repr(default))}"
    return f"{setting}: {given!r} is not valid; it must be {wanted}{usual}"


def _in_words(expected: str) -> str:
    """`float` > 0.0 -> a number > 0.0"""
    _, kind, *bound = expected.partition(", got")[0].split("`")
    words = {"float": "a number", "int": "a whole number", "str": "text", "bool": "true or false", "object": "a table"}
    return words.get(kind, kind) + "".join(bound)


def _section(name: str) -> type[msgspec.Struct] | None:
    """The struct of a section; Config for the empty name, None for an unknown one."""
    if not name:
        return Config
    sections = {field.name: field.type for field in msgspec.structs.fields(Config)}
    found = sections.get(name)
    return found if isinstance(found, type) and issubclass(found, msgspec.Struct) else None
