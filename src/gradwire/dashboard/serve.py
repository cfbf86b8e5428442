"""Serve: binds a socket, prints its address and serves until Ctrl-C."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from gradwire.dashboard.app import build_app
from gradwire.dashboard.library import Library
from gradwire.dashboard.live import Live
from gradwire.dashboard.request_guard import is_loopback
from gradwire.errors import ConfigError


def serve(paths: Sequence[Path], host: str, port: int, token: str | None, say: Callable[[str], None]) -> None:
    """Show the runs at `paths` until interrupted; `say` is called once with the address, including the token if any."""
    if not is_loopback(host):
        token = token or secrets.token_urlsafe(24)
    library = Library(paths)
    listener = bind(host, port)
    try:
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}/"
        say(address + (f"?token={token}" if token else ""))
        app = build_app(library, token)
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2)
        Server(config, app.state.live).run(sockets=[listener])
    finally:
        library.close()
        listener.close()


class Server(uvicorn.Server):
    """Ends open streams when it stops: uvicorn's server would wait for them."""

    def __init__(self, config: uvicorn.Config, live: Live) -> None:
        super().__init__(config)
        self._live = live

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._live.closing = True
        super().handle_exit(sig, frame)

    def stop(self) -> None:
        """Stop a server that runs in a thread, as Ctrl-C does."""
        self._live.closing = True
        self.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; the ConfigError names the setting to change."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise ConfigError(
            f"dashboard: cannot listen on {host}:{port} ({error}); choose another --port or --host"
        ) from error
    listener.listen(128)
    return listener
