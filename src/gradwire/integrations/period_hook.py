"""Period hook: DDP's communication hook of a model whose local steps gradwire chooses (`sync_every = "auto"`).

Synchronous steps go through the hook of synchronous training. In local steps every bucket keeps this rank's own
gradient; at the first of them, with what earlier compressed steps left in this rank's residual.
"""

from __future__ import annotations

from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from gradwire.compress.error_feedback import ErrorFeedback
from gradwire.integrations.local_hook import LocalHook
from gradwire.runtime.session import Session


class PeriodHook(LocalHook):
    """`detached` (LocalHook's word for synchronous gradients) is the mode at the start."""

    def __init__(self, model: DistributedDataParallel, session: Session, feedback: ErrorFeedback) -> None:
        super().__init__(model, session)
        self._session, self._feedback = session, feedback
        self._flushing = False
        self.detach()

    def change_mode(self, local: bool) -> None:
        """From the next backward on."""
        model = self._model()
        if model is not None:
            model.broadcast_buffers = self._broadcast_buffers and not local
        self.detached = not local
        self._flushing = local
        if not local:
            self._session.scaling.paused = False

    def skip_residuals(self) -> None:
        """The residuals are of weights already: a state was loaded in the middle of local steps."""
        self._flushing = False
        self._session.scaling.paused = True

    def __call__(self, bucket: GradBucket) -> Future[Tensor]:
        if self._flushing and not self.detached:
            self._flush(bucket)
        return super().__call__(bucket)

    def _flush(self, bucket: GradBucket) -> None:
        buffer = bucket.buffer()
        if not buffer.is_sparse:
            described = self._after.describe(bucket, bucket.parameters(), buffer)
            self._session.scaling.begin(described.step)  # residuals get the present loss scale
            if self._feedback.pending(described):
                self._feedback.flush(described, buffer)
        if bucket.is_last():
            self._flushing = False
            self._session.scaling.paused = True
