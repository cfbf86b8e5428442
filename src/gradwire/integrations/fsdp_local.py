"""FSDP local: builds local steps for an HSDP model, where the configuration has `sync_every`.

Inside a site FSDP2 gathers and reduce-scatters at every step as before. Between sites nothing is exchanged until the
end of a round: then each rank's pseudo-gradient of its own shards goes to the ranks that hold the same shards, and an
outer optimizer steps them. Everything that follows (local_steps/) is that of DDP models, with this rank's shards as the
weights and the replicate group as the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from gradwire.clock import MonotonicClock
from gradwire.config import AUTO_PERIOD, Config
from gradwire.errors import ConfigError, GradwireError
from gradwire.exchange.verify import digest_of
from gradwire.integrations.fsdp_hook import LocalFsdpHook
from gradwire.integrations.fsdp_unit import FsdpUnit, after_backward
from gradwire.integrations.local_attach import LocalOptimizers, watch_steps
from gradwire.integrations.local_handle import LocalParts
from gradwire.integrations.scaler_search import ScalerSearch
from gradwire.integrations.shard_handle import LocalShardHandle
from gradwire.local_steps.buffer_average import BufferAverage
from gradwire.local_steps.divergence import DivergenceMeter
from gradwire.local_steps.global_weights import GlobalWeights
from gradwire.local_steps.model_parameters import ModelParameters, optimizers_of
from gradwire.local_steps.outer_exchange import OuterParts
from gradwire.local_steps.outer_optimizer import make_outer, name_of
from gradwire.local_steps.outer_report import OuterReporter
from gradwire.local_steps.rounds import Rounds
from gradwire.local_steps.step_counter import StepCounter
from gradwire.local_steps.weight_buckets import own_values
from gradwire.runtime.builder import BuiltSession, build
from gradwire.runtime.plain_path import hsdp_all_reduce


def attach_local_fsdp(
    model: nn.Module,
    config: Config,
    optimizers: LocalOptimizers,
    units: Sequence[FsdpUnit],
    group: dist.ProcessGroup,
) -> LocalShardHandle:
    """Every rank calls this at the same point, with equal weights at all sites. `group` are the replicas."""
    parameters = _parameters(model, units)
    _check_supported(config, parameters)
    parameters.check(*optimizers_of(optimizers.inner))
    weights = GlobalWeights(parameters.trained.items(), count=config.num_fragments)
    if units[0].any_shard(any(one.bucket.numel == 0 for one in weights.buckets)):
        raise ConfigError(
            f"sync_every: with num_fragments = {config.num_fragments} some rank of a site has an empty shard of all "
            "layers of a fragment; use fewer fragments, or fewer ranks in a site"
        )
    outer = make_outer(config.outer, optimizers.outer, weights.parameters)
    # Every shard's group would open a wire of its own: the transport stays the group's unless one is configured.
    numel = sum(one.bucket.numel for one in weights.buckets)
    built = build(config, group, numel, hsdp_all_reduce(group), on_cpu=False, job_ranks=units[0].job_ranks)
    built.session.scaling.all_found = bool  # weights have no loss scale
    hook = LocalFsdpHook(built.session, group.size())
    parts = _outer_parts(model, config, built, weights, outer, group)
    rounds = Rounds(parts, int(config.sync_every), config.fragment_sync_delay)
    counter = StepCounter(parameters, rounds.count_step)
    handle = LocalShardHandle(built, config, LocalParts(rounds, counter, hook), model, units[0].shard)
    try:
        digest = digest_of([one.flat for one in weights.buckets])
        built.check_facts({"outer": name_of(config.outer, optimizers.outer), "the model's weights": f"hash {digest}"})
    except GradwireError:
        handle.close()
        raise
    for unit in units:
        unit.set_hook(hook)
    after_backward(model, hook.end_of_backward)
    ScalerSearch(model, counter)
    watch_steps(counter, optimizers.inner)
    return handle


def _parameters(model: nn.Module, units: Sequence[FsdpUnit]) -> ModelParameters:
    """The sharded parameters, by the names of their shards. Others are frozen, or ignored by FSDP2."""
    trained = {name: one for unit in units for name, one in unit.trained()}
    ours = set(map(id, trained.values()))
    return ModelParameters(trained, tuple(one for one in model.parameters() if id(one) not in ours))


def _outer_parts(
    model: nn.Module,
    config: Config,
    built: BuiltSession,
    weights: GlobalWeights,
    outer: Optimizer,
    group: dist.ProcessGroup,
) -> OuterParts:
    timeout = config.transport.timeout
    buffers = {name: own_values(one) for name, one in model.named_buffers()}
    average, meter = BufferAverage(buffers, group, timeout), DivergenceMeter(group, timeout)
    reporter = OuterReporter(built.event_bus, MonotonicClock())
    return OuterParts(built.session, weights, outer, average, meter, reporter, config.fragment_progress)


def _check_supported(config: Config, parameters: ModelParameters) -> None:
    if config.sync_seconds:
        raise ConfigError(
            f"{config.local_steps} cannot be used with FSDP2: the ranks of a site make their steps together, and would "
            "end a round after different ones, each by its own clock; use sync_every"
        )
    if config.sync_every == AUTO_PERIOD:
        raise ConfigError(
            "sync_every: 'auto' cannot be used with FSDP2: changing between synchronous and local steps is not built "
            "for sharded weights; set sync_every to a number, as in 20"
        )
    if not parameters.trained:
        raise ConfigError("sync_every: the model has no parameters to train")
