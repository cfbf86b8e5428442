"""`gradwire store`: torch's key-value store as a process of its own, for jobs that must outlive their rank 0."""

from __future__ import annotations

import signal
import socket
from typing import Final

import click

from gradwire.errors import ConfigError

# torchrun's own default for a rendezvous.
PORT: Final = 29400
STOPS: Final = (signal.SIGINT, signal.SIGTERM)


@click.command("store")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on, and no other.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0: any free port.")
def store_command(host: str, port: int) -> None:
    """Serve torch's store for one job until SIGTERM or Ctrl-C, and print where: the value for GRADWIRE_STORE.

    Whoever reaches the port can read and write the store: name an address of a network that you trust.
    """
    from torch._C._distributed_c10d import TCPStore

    listener = listen(host, port)
    port = listener.getsockname()[1]
    # Before torch's threads begin: they inherit that these signals are left to `sigwait`.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    served = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    click.echo(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    signal.sigwait(STOPS)
    del served


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; ConfigError for an address that is not this host's, or a port that is taken."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        raise ConfigError(
            f"store: cannot listen on {host} port {port} ({error}); name an address of this host and a free port"
        ) from error
    return listener
