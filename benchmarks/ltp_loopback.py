"""Goodput and CPU of one LTP link on loopback, between two processes.

    python benchmarks/ltp_loopback.py [--help]

Prints one line per mode. Kernel TCP with the same buffer sizes runs right before it: other programs on the machine make
absolute numbers unreliable, so compare the ratio.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import time

from gradwire.transport.wires.ltp import Endpoint, LtpConfig

RANK_SENDER, RANK_RECEIVER = 0, 1


def cpu() -> float:
    spent = os.times()
    return spent.user + spent.system


def report(name: str, size: int, seconds: float, used: tuple[float, float]) -> None:
    rate = size * 8 / seconds / 1e9
    print(f"{name:<22} {rate:6.2f} Gbit/s   CPU s/GB  tx {used[0] / size * 1e9:.2f}  rx {used[1] / size * 1e9:.2f}")


def ltp(mode: str, config: LtpConfig, size: int, rounds: int) -> None:
    """The parent sends, a forked child receives; each counts its own CPU."""
    secret = secrets.token_bytes(32)
    to_child, from_child = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        buffer = bytearray(size)
        with Endpoint(RANK_RECEIVER, secret, config) as end:
            os.write(from_child[1], f"{end.port}\n".encode())
            end.connect({RANK_SENDER: ("127.0.0.1", int(os.read(to_child[0], 32)))})
            assert end.receive(RANK_SENDER, buffer, tag=rounds, timeout=120).complete
            start = cpu()
            for tag in range(rounds):
                assert end.receive(RANK_SENDER, buffer, tag=tag, timeout=120).complete
            os.write(from_child[1], f"{cpu() - start}\n".encode())
            os.read(to_child[0], 1)
        os._exit(0)
    payload = bytes(size)
    with Endpoint(RANK_SENDER, secret, config) as end:
        os.write(to_child[1], f"{end.port}\n".encode())
        end.connect({RANK_RECEIVER: ("127.0.0.1", int(os.read(from_child[0], 32)))})
        # The first transfer runs while the MTU of the path is probed; it is not counted.
        end.send(RANK_RECEIVER, payload, tag=rounds).wait(120)
        start, began = cpu(), time.monotonic()
        transfers = [end.send(RANK_RECEIVER, payload, tag=tag) for tag in range(rounds)]
        for transfer in transfers:
            transfer.wait(120)
        seconds, used = time.monotonic() - began, cpu() - start
        received = float(os.read(from_child[0], 64))
        link = end.stats()[RANK_RECEIVER]
        os.write(to_child[1], b"x")
    os.waitpid(pid, 0)
    report(mode, size * rounds, seconds, (used, received))
    print(f"{'':<22} datagram {link['datagram']:.0f}, lost {link['packets_lost']:.0f} of {link['packets_sent']:.0f}")


def tcp(size: int, rounds: int) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    done = os.pipe()
    pid = os.fork()
    if pid == 0:
        peer = listener.accept()[0]
        buffer, start, left = bytearray(1 << 20), cpu(), size * rounds
        while left:
            left -= peer.recv_into(buffer)
        os.write(done[1], f"{cpu() - start}\n".encode())
        os._exit(0)
    with socket.create_connection(listener.getsockname()) as link:
        payload, start, began = bytes(size), cpu(), time.monotonic()
        for _ in range(rounds):
            link.sendall(payload)
        received = float(os.read(done[0], 64))
        report("kernel TCP", size * rounds, time.monotonic() - began, (cpu() - start, received))
    os.waitpid(pid, 0)
    listener.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=64, help="size of one transfer")
    parser.add_argument("--rounds", type=int, default=16)
    arguments = parser.parse_args()
    size = arguments.mb * 1_000_000
    tcp(size, arguments.rounds)
    for datagram in (1472, 8972):
        ltp(f"LTP {datagram}", LtpConfig(largest_datagram=datagram), size, arguments.rounds)
        ltp(f"LTP {datagram} auth only", LtpConfig(largest_datagram=datagram, encrypt=False), size, arguments.rounds)


if __name__ == "__main__":
    main()
