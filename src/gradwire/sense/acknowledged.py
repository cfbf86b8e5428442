"""Acknowledged: what a transport's acknowledgements say of each link takes the place of what pulses guessed.

Pulses share the training thread's lateness; an ACK is timed by the transport itself. Round trips, queueing and loss are
therefore the acknowledgements' where there are any. How long a step's synchronisation takes stays as it was: that is
about the job, not about a link.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gradwire.flow import LinkView, View


def acknowledged(view: View, rank: int, links: Mapping[int, LinkView]) -> View:
    """The view of `rank`, with its links as their acknowledgements show them; the group is as its worst link."""
    known = {peer: link for peer, link in links.items() if link.rtprop is not None and link.confidence > 0}
    if not known:
        return view
    group = replace(
        view.group,
        rtprop=max(link.rtprop for link in known.values() if link.rtprop is not None),
        queueing=max(link.queueing for link in known.values()),
        loss=max(link.loss for link in known.values()),
    )
    return View(group, {**view.links, **{(rank, peer): link for peer, link in known.items()}})
