"""Burst losses: packets lost in a burst, also at the tail of a transfer, cost round trips and not repeated timeouts.

Virtual time, the lab's link model, the real LTP: 1 ms, 5 % of the packets lost in bursts of five.
"""

from __future__ import annotations

from gradwire._native import PacketLink, PacketWorld

SIZE, RATE, LOSS, TRANSFERS = 1_000_000, 12.5e6, 0.05, 5


def transfer_times(seed: int) -> list[float]:
    world, link = PacketWorld(2, seed), PacketLink()
    link.rate, link.delay, link.queue, link.mtu = RATE, 0.0005, int(RATE * 0.05), 1500
    link.burst_loss, link.burst_leave, link.burst_enter = 1.0, 0.2, 0.2 * LOSS / (1 - LOSS)
    for way in range(2):
        world.add_link(link, 7 * seed + way, 14)
        world.set_path(way, 1 - way, [way])
    world.connect(0, 1)
    world.run(2.0)
    times = []
    for token in range(1, TRANSFERS + 1):
        begun = world.now
        world.expect(1, 0, token, SIZE)
        world.send(0, 1, token, SIZE)
        while not any(host == 1 and not sent for _, host, _, sent in world.run(1.0)):
            assert world.now < begun + 60, "the transfer does not end"
        times.append(world.now - begun)
    return times


def test_bursts_do_not_stall_a_transfer() -> None:
    times = [time for seed in range(1, 13) for time in transfer_times(seed)]
    alone = SIZE / RATE / (1 - LOSS)
    assert max(times) < 2 * alone
    assert sum(times) / len(times) < 1.3 * alone
