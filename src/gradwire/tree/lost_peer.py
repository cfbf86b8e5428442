"""Lost peer: how a dead or unreachable member is noticed.

    1. a wire notices it: a closed connection at once, a silent peer after `transport.dead_after`, where keep-alives are
       not answered (native/stream/endpoint_peers.cpp for TCP, native/ltp/connection.cpp for LTP)
    2. FrameIO raises this error from the transfers that the wire ends
    3. without an elastic plan the job stops; with one, tree/elastic_controller.py removes the member
"""

from __future__ import annotations

from gradwire.errors import LinkError


class LostPeerError(LinkError):
    """The connection to `peer` is gone; `left` if the peer closed it normally."""

    def __init__(self, peer: int, text: str, left: bool = False) -> None:
        super().__init__(text)
        self.peer, self.left = peer, left
