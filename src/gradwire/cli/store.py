"""`gradwire store`: serves torch's key-value store in a separate process, for jobs that must survive their rank 0."""

from __future__ import annotations

import signal
import socket
from typing import Final

import click

from gradwire.errors import ConfigError

# torchrun's own default for a rendezvous.
PORT: Final = 29400
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@click.command("store")
@click.option("--host", default="127.0.0.1", show_default=True, help="The only address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0: any free port.")
def store_command(host: str, port: int) -> None:
    """Serve torch's store for one job until SIGTERM or Ctrl-C, and print its address: the value for GRADWIRE_STORE.

    Anyone who can reach the port can read and write the store: use an address of a trusted network.
    """
    from torch._C._distributed_c10d import TCPStore

    listener = listen(host, port)
    port = listener.getsockname()[1]
    # Before torch's threads start: they inherit the mask, so that only `sigwait` receives these signals.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    served = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    click.echo(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    signal.sigwait(STOP_SIGNALS)
    del served


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; ConfigError for an address of another host, or a port in use."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        raise ConfigError(
            f"store: cannot listen on {host} port {port} ({error}); name an address of this host and a free port"
        ) from error
    return listener
