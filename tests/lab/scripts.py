"""Scripts that run on the hosts in these tests, as source text; each rank gets torchrun's variables."""

PROBE = """
import os, socket, sys, time
# Rank 0 sends a stamped packet every 2 ms, rank 1 prints "sent-since-start delay" for each that arrives.
start, seconds = float(os.environ["GRADWIRE_LAB_START"]), float(sys.argv[1])
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if os.environ["RANK"] == "1":
    sock.bind(("", 7000))
    sock.settimeout(0.2)
    while time.monotonic() < start + seconds + 0.3:
        try:
            sent = float(sock.recv(100))
        except TimeoutError:
            continue
        now = time.monotonic()
        print(f"{sent - start:.6f} {now - sent:.6f}")
else:
    time.sleep(0.3)
    while time.monotonic() < start + seconds:
        sock.sendto(f"{time.monotonic():.6f}".encode(), (sys.argv[2], 7000))
        time.sleep(0.002)
"""

# Rank 1 listens with a buffer for all packets, since a packet that it drops itself would count as lost, and creates a
# file; rank 0 waits for that file.
_LISTEN = """\
import os, socket, sys, time
count, ready = int(sys.argv[1]), sys.argv[3]
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if os.environ["RANK"] == "1":
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    sock.bind(("", 7000))
    sock.settimeout(60)
    open(ready, "w").close()
"""
_WAIT = """\
else:
    deadline = time.monotonic() + 60
    while not os.path.exists(ready):
        assert time.monotonic() < deadline
        time.sleep(0.01)
"""

# Rank 0 sends numbered packets, rank 1 prints those that never arrived.
COUNTED = f"""
{_LISTEN}
    arrived = set()
    try:
        while len(arrived) < count:
            arrived.add(int(sock.recv(100)))
            sock.settimeout(5)
    except TimeoutError:
        pass
    print(*sorted(set(range(count)) - arrived))
{_WAIT}
    for number in range(count):
        sock.sendto(str(number).encode(), (sys.argv[2], 7000))
        if number % 2 == 0:
            time.sleep(0.001)
"""

# Rank 0 sends numbered packets, half a millisecond apart; rank 1 prints the numbers in the order of their arrival.
ORDER = f"""
{_LISTEN}
    arrived = []
    while not arrived or arrived[-1] != b"end":
        arrived.append(sock.recv(100))
    print(*(number.decode() for number in arrived[:-1]))
{_WAIT}
    for number in range(count):
        sock.sendto(str(number).encode(), (sys.argv[2], 7000))
        time.sleep(0.0005)
    time.sleep(0.2)  # longer than any packet is delayed
    sock.sendto(b"end", (sys.argv[2], 7000))
"""

INCAST = """
import os, socket, sys, time
# Everybody sends to rank 0 at once, as to a parameter server.
rank, world, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(sys.argv[1])
address = (os.environ["MASTER_ADDR"], 7000)
if rank == 0:
    server = socket.create_server(address)
    peers = [server.accept()[0] for _ in range(world - 1)]
    for peer in peers:
        peer.sendall(b"g")
    start, total = time.monotonic(), 0
    import selectors
    ready = selectors.DefaultSelector()
    for peer in peers:
        ready.register(peer, selectors.EVENT_READ)
    while total < size * (world - 1):
        for key, _ in ready.select(5):
            total += len(key.fileobj.recv(1 << 20))
    print(total, time.monotonic() - start)
else:
    deadline = time.monotonic() + 10
    while True:
        try:
            peer = socket.create_connection(address, timeout=5)
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    peer.recv(1)
    peer.sendall(bytes(size))
    peer.shutdown(socket.SHUT_WR)
    peer.recv(1)
"""
