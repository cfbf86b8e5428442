"""`--net`: a network by name or by file, as the plan and simulate commands read it.

A lab preset or TOML file, netstorm9:SEED, generated:SITES[:SEED], .json of ours, .csv of AWS or Skyplane.
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
    """The network a person means; ConfigError says what can be written."""
    try:
        named = _read(text, latency)
    except ConfigError:
        raise
    # What a file of any content may lead to: other bytes than UTF-8, a word for a number, a link to no site.
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"net: {text}: {error}; see docs/planning.md for the format") from error
    if named.matrix.size < 2:
        raise ConfigError(f"net: {text} has fewer than 2 sites; there is nothing to send between them")
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
    raise ConfigError(f"net: {text!r} is no network; write {HELP}")


def linked(text: str) -> Network:
    """The same with its links, which only the lab's networks have."""
    if Path(text).suffix != ".toml" and text not in PRESETS:
        raise ConfigError(f"packets: {text!r} has rates between sites but no links; write a preset or a TOML file")
    return load_network(text)


def _numbers(words: list[str], text: str, most: int) -> list[int]:
    if (
        len(words) > most
        or not all(word.isdecimal() for word in words)
        or (most == 2 and not 1 <= int(words[0]) <= 5000)
    ):
        raise ConfigError(f"net: {text!r} is not understood; write {HELP}")
    return [int(word) for word in words]
