"""Matrices from files and generators, and their routes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gradwire.errors import ConfigError, LinkError
from gradwire.plan.matrix import Matrix
from gradwire.plan.model.matrix_io import aws10, from_json, generated, netstorm9, skyplane
from gradwire.plan.model.routes import Routes


def test_the_9_sites_have_13_links_each_way_between_20_and_155_mbit() -> None:
    matrix = netstorm9(5).matrix
    rates = matrix.rate[matrix.rate > 0] * 8 / 1e6
    assert matrix.members == tuple(range(1, 10))
    assert len(rates) == 26
    assert rates.min() >= 20
    assert rates.max() <= 155
    assert (netstorm9(5).matrix.rate == matrix.rate).all()


def test_a_route_takes_the_fewest_relays_and_then_the_fastest() -> None:
    matrix = Matrix.of_links({(0, 1): 1.0, (1, 3): 1.0, (0, 2): 9.0, (2, 3): 9.0, (3, 0): 1.0})
    routes = Routes(matrix)
    assert routes.route(0, 1) == (0, 1)
    assert routes.route(0, 3) == (0, 2, 3)
    with pytest.raises(LinkError, match="from member 0 to member 4"):
        Routes(Matrix.of(np.pad(matrix.rate, (0, 1)))).route(0, 4)


def test_csv_and_json_files_are_read(tmp_path: Path) -> None:
    aws = tmp_path / "aws10_rtt_bandwidth.csv"
    aws.write_text("region_a,region_b,rtt_ms,bandwidth_gbps\nOregon,Tokyo,96,0.5\n")
    named = aws10(tmp_path)
    assert named.sites == ("Oregon", "Tokyo")
    assert named.matrix.rate[1, 0] == 0.5e9 / 8
    assert named.matrix.rtprop[0, 1] == pytest.approx(0.096)
    sky = tmp_path / "sky.csv"
    sky.write_text("src_region,dst_region,throughput_received\na,b,800\na,b,1600\nb,a,80\n")
    assert skyplane(sky).matrix.rate.tolist() == [[0, 200], [10, 0]]
    mine = tmp_path / "mine.json"
    links = [{"from": "x", "to": "y", "rate": "8mbit", "rtt": "10ms", "both": False}]
    mine.write_text(json.dumps({"sites": ["x", "y"], "links": links, "up": {"x": "4mbit"}}))
    read = from_json(mine).matrix
    assert read.rate.tolist() == [[0, 1e6], [0, 0]]
    assert read.up[0] == 0.5e6


@pytest.mark.parametrize(("text", "word"), [("{", "mine.json"), ('{"sites": ["x"]}', "links")])
def test_an_error_names_the_bad_file(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=word):
        from_json(path)
    with pytest.raises(ConfigError, match="cannot read"):
        aws10(tmp_path / "none.csv")


@pytest.mark.parametrize("rate", [[[1.0]], [[0, 1], [2, 3], [4, 5]], [[0, -1], [1, 0]]])
def test_an_invalid_matrix_is_refused(rate: list[list[float]]) -> None:
    with pytest.raises(ConfigError, match="matrix"):
        Matrix.of(rate, members=(1, 2))


def test_generated_networks_are_connected_and_repeatable() -> None:
    first, again = generated(20, 3).matrix, generated(20, 3).matrix
    assert (first.rate == again.rate).all()
    assert ((first.rate > 0) == ~np.eye(20, dtype=bool)).all()
