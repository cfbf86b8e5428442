"""Which requests are allowed, and what the security headers forbid."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from gradwire.cli.main import cli
from gradwire.dashboard.request_guard import POLICY, is_loopback
from gradwire.observe.sample import SampleShape, write
from tests.dashboard.conftest import Served

TOKEN = "a-token-of-some-length"


@pytest.fixture
def guarded(serve: Callable[..., Served], tmp_path: Path) -> Served:
    write(tmp_path / "run", SampleShape(ranks=2, seconds=10.0))
    return serve(tmp_path, TOKEN)


def test_requests_without_the_token_are_refused(guarded: Served) -> None:
    for path in ("/", "/app.js", "/api/runs", "/api/openapi.json", "/api/live", "/nothing"):
        assert httpx.get(guarded.address + path).status_code == 401
    wrong = {"authorization": "Bearer wrong"}, {"cookie": "gradwire-token=wrong"}, {"cookie": '"=;,'}
    for headers in wrong:
        assert httpx.get(guarded.address + "/api/runs", headers=headers).status_code == 401
    assert httpx.get(guarded.address + "/?token=").status_code == 401
    assert httpx.get(guarded.address + "/?token=ä").status_code == 401


def test_the_token_is_exchanged_for_a_cookie_that_scripts_cannot_read(guarded: Served) -> None:
    first = httpx.get(f"{guarded.address}//evil.example?token={TOKEN}&x=1")
    assert first.status_code == 303
    assert first.headers["location"] == "/evil.example?x=1"
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    with httpx.Client(follow_redirects=True) as client:
        page = client.get(f"{guarded.address}/?token={TOKEN}")
        assert page.status_code == 200
        assert TOKEN not in str(page.url)
        assert client.get(guarded.address + "/api/runs").status_code == 200


def test_a_program_may_send_the_token_as_bearer(guarded: Served) -> None:
    headers = {"authorization": f"Bearer {TOKEN}"}
    assert httpx.get(guarded.address + "/api/runs", headers=headers).status_code == 200


def test_on_loopback_a_foreign_host_name_is_refused(served: Served) -> None:
    for host in ("evil.example", "127.evil.example", "127.0.0.1.evil.example:7077", "localhost.evil.example", ""):
        assert httpx.get(served.address + "/api/runs", headers={"host": host}).status_code == 421, host
    for host in ("localhost:7077", "127.0.0.53", "[::1]:7077"):
        assert httpx.get(served.address + "/api/runs", headers={"host": host}).status_code == 200, host


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_get_and_head_are_allowed(served: Served, method: str) -> None:
    assert httpx.request(method, served.address + "/api/runs").status_code == 405


@pytest.mark.parametrize("path", ["/", "/app.js", "/api/runs", "/nothing", "/api/runs/none/overview"])
def test_every_response_has_the_content_security_policy(served: Served, path: str) -> None:
    headers = httpx.get(served.address + path).headers
    assert headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_files_outside_the_assets_are_not_served(served: Served) -> None:
    for path in ("/../app.py", "/%2e%2e/app.py", "/static/app.js", "/assets/../../guard.py", "/app.py"):
        assert httpx.get(served.address + path).status_code == 404


def test_which_addresses_are_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.0.0.53", "localhost", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "127.example.org", "127.1.")))


def test_a_missing_folder_is_one_sentence(tmp_path: Path) -> None:
    from click.testing import CliRunner

    result = CliRunner().invoke(cli, ["dashboard", str(tmp_path / "none")])
    assert "does not exist" in str(result.exception)
