"""Reads matrices from files and generates them: the networks of tests, examples and the command line.

In: CSV files (ten AWS regions; Skyplane's cloud regions), a JSON file of gradwire's format, or a seed. Out: a
NamedMatrix.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gradwire.errors import ConfigError
from gradwire.network.presets import NETSTORM_LINKS
from gradwire.plan.matrix import Matrix
from gradwire.units import Rate, parse_rate, parse_seconds

AWS_COLUMNS = ("region_a", "region_b", "rtt_ms", "bandwidth_gbps")


@dataclass(frozen=True, slots=True)
class NamedMatrix:
    """A matrix with a name for the network and one for each member."""

    name: str
    matrix: Matrix
    sites: tuple[str, ...]


def netstorm9(seed: int = 0, low_mbit: float = 20, high_mbit: float = 155, rtprop: float = 0.03) -> NamedMatrix:
    """NetStorm's testbed, members 1..9; the rate of each direction of each link is drawn uniformly."""
    draw = np.random.default_rng(seed)
    links = {}
    for first, second in NETSTORM_LINKS:
        for pair in ((first, second), (second, first)):
            links[pair] = float(Rate.from_mbit(draw.uniform(low_mbit, high_mbit)))
    return NamedMatrix("netstorm9", Matrix.of_links(links, rtprop), tuple(f"site{site}" for site in range(1, 10)))


def generated(size: int, seed: int = 0, uplink_mbit: float = 1000.0) -> NamedMatrix:
    """Random sites on a globe: round trips grow and link rates fall with distance; up- and downlinks are unequal."""
    draw = np.random.default_rng(seed)
    points = draw.normal(size=(size, 3))
    points /= np.linalg.norm(points, axis=1)[:, None]
    angle = np.arccos(np.clip(points @ points.T, -1, 1))
    rtprop = 0.002 + angle / np.pi * 0.28
    rate = uplink_mbit * 1e6 / 8 * np.clip(draw.lognormal(-0.5, 0.5, (size, size)) * (0.03 / rtprop) ** 0.5, 0.01, 1)
    caps = uplink_mbit * 1e6 / 8 * draw.uniform(0.5, 1.0, (2, size))
    matrix = Matrix.of(rate, rtprop, up=caps[0], down=caps[1])
    return NamedMatrix(f"generated-{size}", matrix, tuple(f"g{site}" for site in range(size)))


def aws10(path: Path) -> NamedMatrix:
    """Ten AWS regions: `region_a,region_b,rtt_ms,bandwidth_gbps`, one row per pair, equal in both directions."""
    rows = _rows(path / "aws10_rtt_bandwidth.csv" if path.is_dir() else path, *AWS_COLUMNS)
    sites = sorted({row[end] for row in rows for end in ("region_a", "region_b")})
    rate, rtprop = np.zeros((2, len(sites), len(sites)))
    for row in rows:
        a, b = sites.index(row["region_a"]), sites.index(row["region_b"])
        rate[a, b] = rate[b, a] = float(row["bandwidth_gbps"]) * 1e9 / 8
        rtprop[a, b] = rtprop[b, a] = float(row["rtt_ms"]) / 1e3
    return NamedMatrix("geo-aws10", Matrix.of(rate, rtprop), tuple(sites))


def skyplane(throughput: Path, latency: Path | None = None, egress: float = np.inf) -> NamedMatrix:
    """Cloud regions: directed bit/s from iperf3, round trips where known (else the median).

    The best tier of a pair counts. `egress` limits each region's up- and downlink in bytes/s: throughputs were
    measured one pair at a time, so without it every pair counts as an independent link.
    """
    best: dict[tuple[str, str], float] = {}
    for row in _rows(throughput, "src_region", "dst_region", "throughput_received"):
        pair = row["src_region"], row["dst_region"]
        best[pair] = max(best.get(pair, 0.0), float(row["throughput_received"] or 0) / 8)
    sites = sorted({end for pair in best for end in pair})
    row_of = {site: index for index, site in enumerate(sites)}
    rate = np.zeros((len(sites), len(sites)))
    for (source, destination), value in best.items():
        rate[row_of[source], row_of[destination]] = value
    rtprop = np.full_like(rate, np.nan)
    for row in _rows(latency, "src_region", "dst_region", "min_rtt") if latency else []:
        if row["src_region"] in row_of and row["dst_region"] in row_of:
            a, b = row_of[row["src_region"]], row_of[row["dst_region"]]
            rtprop[a, b] = rtprop[b, a] = np.fmin(rtprop[a, b], float(row["min_rtt"]) / 1e3)
    rtprop[np.isnan(rtprop)] = 0.0 if np.isnan(rtprop).all() else np.nanmedian(rtprop)
    matrix = Matrix.of(rate, rtprop, up=egress, down=egress)
    return NamedMatrix(f"skyplane-{len(sites)}", matrix, tuple(sites))


def from_json(path: Path) -> NamedMatrix:
    """`{"sites": [...], "links": [{"from", "to", "rate": "200mbit", "rtt": "40ms", "both": true}], "up": {}}`

    A link counts for both directions unless "both" is false; "up" and "down" map sites to rates and are optional.
    """
    try:
        data = json.loads(path.read_text())
        sites = [str(site) for site in data["sites"]]
        rate, rtprop = np.zeros((2, len(sites), len(sites)))
        for link in data["links"]:
            a, b = sites.index(str(link["from"])), sites.index(str(link["to"]))
            for pair in ((a, b), (b, a)) if link.get("both", True) else ((a, b),):
                rate[pair] = parse_rate(link["rate"], "rate")
                rtprop[pair] = parse_seconds(link.get("rtt", 0), "rtt")
        caps = [
            [float(parse_rate(data.get(side, {}).get(site, "inf"), side)) for site in sites] for side in ("up", "down")
        ]
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"matrix: {path}: {what}; see docs/planning.md for the format") from error
    return NamedMatrix(path.stem, Matrix.of(rate, rtprop, up=caps[0], down=caps[1]), tuple(sites))


def _rows(path: Path, *columns: str) -> list[dict[str, str]]:
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise ConfigError(f"matrix: cannot read {path} ({error.strerror}); name a readable CSV file") from error
    if not rows or any(column not in rows[0] for column in columns):
        raise ConfigError(f"matrix: {path} must have the columns {', '.join(columns)}, and at least one row")
    return rows
