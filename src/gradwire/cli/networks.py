"""Networks: reads the option `--net` of the plan and simulate commands.

A lab preset or TOML file, netstorm9:SEED, generated:SITES[:SEED], gradwire's .json, or a .csv of AWS or Skyplane.
"""

from __future__ import annotations

from pathlib import Path

from gradwire.errors import ConfigError
from gradwire.network import Network, load_network
from gradwire.network.presets import PRESETS
from gradwire.plan.model.matrix_io import NamedMatrix, aws10, from_json, generated, netstorm9, skyplane
from gradwire.simulate.underlay import matrix_of

HELP = (
    "a preset or TOML file of the lab, netstorm9:SEED, generated:SITES[:SEED], a .json file, or a .csv of bandwidths "
    "(region_a,region_b,rtt_ms,bandwidth_gbps, or Skyplane's src_region,...,throughput_received)."
)


def network(text: str, latency: str | None = None) -> NamedMatrix:
    """The network that `text` names; the ConfigError lists the valid forms."""
    try:
        named = _read(text, latency)
    except ConfigError:
        raise
    # A file with arbitrary content may cause these: bytes other than UTF-8, text instead of a number, unknown sites.
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"net: {text}: {error}; see docs/planning.md for the format") from error
    if named.matrix.size < 2:
        raise ConfigError(f"net: {text} has fewer than 2 sites; planning needs at least two")
    return named


def _read(text: str, latency: str | None) -> NamedMatrix:
    name, *numbers = text.split(":")
    path = Path(text)
    if path.suffix == ".toml" or text in PRESETS:
        made = load_network(text)
        return NamedMatrix(made.name, matrix_of(made), tuple(host.name for host in made.ranks))
    if name == "netstorm9":
        return netstorm9(*_numbers(numbers, text, 1))
    if name == "generated" and numbers:
        return generated(*_numbers(numbers, text, 2))
    if path.suffix == ".json":
        return from_json(path)
    if path.suffix == ".csv" and path.is_file():
        with path.open() as file:
            skyplanes = "throughput_received" in file.readline()
        return skyplane(path, Path(latency) if latency else None) if skyplanes else aws10(path)
    raise ConfigError(f"net: {text!r} is not a network; use {HELP}")


def linked(text: str) -> Network:
    """The network with its links, which only the lab's networks have."""
    if Path(text).suffix != ".toml" and text not in PRESETS:
        raise ConfigError(f"packets: {text!r} has rates but no links; name a preset or a TOML file with --net")
    return load_network(text)


def _numbers(numbers: list[str], text: str, most: int) -> list[int]:
    if (
        len(numbers) > most
        or not all(number.isdecimal() for number in numbers)
        or (most == 2 and not 1 <= int(numbers[0]) <= 5000)
    ):
        raise ConfigError(f"net: {text!r} is not valid; use {HELP}")
    return [int(number) for number in numbers]
