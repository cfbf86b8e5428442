"""SiteGroups: the two process groups inside a site, one for sums and one for results.

Each is used by one thread only, so both see the same order of collectives on all ranks. A failed collective is a
SiteError, and no other one is started after it, so that the number of summed buckets no longer changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import torch.distributed as dist
from torch import Tensor

from gradwire.errors import GradwireError, LinkError
from gradwire.transport.lanes.collectives import explain


class SiteError(LinkError):
    """A collective inside the site failed: a rank of the site is lost."""


class SiteGroups:
    """The groups of one rank."""

    def __init__(self, groups: Sequence[dist.ProcessGroup]) -> None:
        self._groups = list(groups)
        self.size = groups[0].size()
        self._aborted = self._failed = False

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum over the site, in place, in the group for sums."""
        self._run(lambda: self._groups[0].allreduce([tensor]).wait())

    def share(self, collectives: Callable[[dist.ProcessGroup], object]) -> None:
        """Run collectives in the group for results."""
        self._run(lambda: collectives(self._groups[1]))

    def check_open(self) -> None:
        if self._aborted:
            raise SiteError("a rank of this site is lost")

    def abort(self) -> None:
        """Start no further collective, and close the connections so that ranks that wait for this one notice."""
        self._aborted = True
        while self._groups:
            with suppress(ValueError, AssertionError, RuntimeError):  # a group that torch does not know
                dist.destroy_process_group(self._groups.pop())

    def _run(self, collective: Callable[[], object]) -> None:
        if self._aborted or self._failed:
            raise SiteError("a rank of this site is lost; the others continue without it")
        try:
            collective()
        except GradwireError:
            raise
        except (RuntimeError, IndexError) as error:  # IndexError: `abort` closed the groups meanwhile
            self._failed = True
            raise SiteError(explain(RuntimeError(str(error)), "inside the site: the collective")) from error
