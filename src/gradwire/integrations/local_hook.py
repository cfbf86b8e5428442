"""Local hook: DDP's communication hook of a model with local steps. Every bucket keeps this rank's own gradient.

After `detach` it does what plain DDP does, by the hook of synchronous training.
"""

from __future__ import annotations

import weakref

from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from gradwire.errors import ConfigError
from gradwire.integrations.ddp_hook import DdpHook, DetachedHook, unchanged
from gradwire.runtime.session import Session


class LocalHook:
    """One model's hook. DDP broadcasts no buffers before a forward pass until `detach`."""

    def __init__(self, model: DistributedDataParallel, session: Session) -> None:
        self._model = weakref.ref(model)
        self._after = DdpHook(model, session)
        self.detached = False
        self._broadcast_buffers, model.broadcast_buffers = model.broadcast_buffers, False

    def __reduce__(self) -> tuple[type[DetachedHook], tuple[()]]:
        """A copy of the model has no session, as in DdpHook."""
        return DetachedHook, ()

    def __call__(self, bucket: GradBucket) -> Future[Tensor]:
        if self.detached:
            return self._after(bucket)
        model = self._model()
        if model is not None and model._join_config.enable:
            raise ConfigError(
                "sync_every: model.join() exchanges messages at every step, which local steps avoid; give every rank "
                "the same number of steps and train without join()"
            )
        self._after.check_process()
        return unchanged(bucket)

    def detach(self) -> None:
        """Synchronise gradients from the next backward on, and buffers as the model was configured to."""
        model = self._model()
        if not self.detached and model is not None:
            model.broadcast_buffers = self._broadcast_buffers
        self.detached = True
