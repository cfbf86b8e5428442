"""Errors: why a group can no longer be used, with the same message on every rank."""

from __future__ import annotations

import torch.distributed as dist

from gradwire.errors import LinkError


class CollectiveError(LinkError, dist.DistBackendError):
    """A collective, send or receive did not complete. Torch's own error as well, so that existing handlers catch it."""
