"""Local attach: builds local steps for a DDP model, where the configuration has `sync_every` or `sync_seconds`."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gradwire.clock import MonotonicClock
from gradwire.config import Config
from gradwire.errors import ConfigError, GradwireError
from gradwire.exchange.verify import digest_of
from gradwire.integrations.ddp_hook import register
from gradwire.integrations.local_handle import LocalParts, LocalStepsHandle
from gradwire.integrations.local_hook import LocalHook
from gradwire.integrations.optimizer_watch import watch
from gradwire.integrations.scaler_search import ScalerSearch
from gradwire.integrations.timed_attach import count_timed_steps, exchange_group, timed_rounds
from gradwire.integrations.timed_handle import TimedHandle
from gradwire.local_steps.adaptive_rounds import RoundControl
from gradwire.local_steps.buffer_average import BufferAverage
from gradwire.local_steps.divergence import DivergenceMeter
from gradwire.local_steps.global_weights import GlobalWeights
from gradwire.local_steps.model_parameters import FIX, ModelParameters, optimizers_of
from gradwire.local_steps.outer_exchange import OuterParts
from gradwire.local_steps.outer_optimizer import OuterFactory, make_outer, name_of
from gradwire.local_steps.outer_report import OuterReporter
from gradwire.local_steps.period_vote import PeriodVote
from gradwire.local_steps.rounds import Rounds
from gradwire.local_steps.step_counter import StepCounter
from gradwire.local_steps.tree_mean import TreeMean
from gradwire.local_steps.tree_round import TreeBuffers, TreeDivergence, TreeRound
from gradwire.local_steps.voted_rounds import VotedRounds
from gradwire.runtime.builder import BuiltSession, build
from gradwire.runtime.plan_governor import PlanGovernor


@dataclass(frozen=True, slots=True)
class LocalOptimizers:
    """`inner` is the optimizer whose steps are counted, or a list of several; None where the first one that steps the
    model is to be taken (`gradwire.run` attaches before the script makes one). `outer` makes the outer optimizer, where
    one was passed."""

    inner: object | None
    outer: OuterFactory | None


class OptimizerSearch:
    """Waits for the first step of an optimizer that steps the model."""

    def __init__(self, counter: StepCounter) -> None:
        self._counter = weakref.ref(counter)

    def ended_by(self, optimizer: Optimizer) -> bool:
        counter = self._counter()
        if counter is None or counter.bound:
            return True
        counter.bind_at_step(optimizer)
        return counter.bound


def attach_local(model: DistributedDataParallel, config: Config, optimizers: LocalOptimizers) -> LocalStepsHandle:
    """Every rank calls this at the same point, with equal weights."""
    parameters = ModelParameters.of(model.module, model.parameters_to_ignore)
    check_supported(model)
    if optimizers.inner is not None:
        parameters.check(*optimizers_of(optimizers.inner))
    weights = GlobalWeights(parameters.trained.items(), count=config.num_fragments)
    outer = make_outer(config.outer, optimizers.outer, weights.parameters)
    group = exchange_group(model.process_group, config)
    built = build(config, group, parameters.numel, on_cpu=parameters.on_cpu)
    # Weights have no loss scale, so ranks need not agree on a scaler, for which the first exchange would wait.
    built.session.scaling.all_found = bool
    parts = outer_parts(model, config, built, weights, outer, group)
    hook = LocalHook(model, built.session)
    rank, timeout = group.rank(), config.transport.timeout
    if config.sync_seconds:
        timed = timed_rounds(parts, config, group)
        counter = count_timed_steps(parameters, timed)
        handle: LocalStepsHandle = TimedHandle(built, config, LocalParts(timed, counter, hook), timed)
    else:
        if config.voted_rounds:
            rounds: Rounds = voted_rounds(parts, built, rank, timeout)
        else:
            rounds = Rounds(parts, int(config.sync_every), config.fragment_sync_delay)
        counter = StepCounter(parameters, rounds.count_step)
        handle = LocalStepsHandle(built, config, LocalParts(rounds, counter, hook))
    try:
        digest = digest_of([one.flat for one in weights.buckets])
        built.check_facts({"outer": name_of(config.outer, optimizers.outer), "the model's weights": f"hash {digest}"})
        register(model, hook)
    except GradwireError:
        hook.detach()
        handle.close()
        raise
    ScalerSearch(model, counter)
    watch_steps(counter, optimizers.inner)
    if built.sampler is not None:
        built.sampler.adaptive = True  # the cautious price; what sparse levels cost pseudo-gradients is not measured
    return handle


def voted_rounds(parts: OuterParts, built: BuiltSession, rank: int, timeout: float) -> VotedRounds:
    """Rounds of an elastic plan whose length gradwire chooses."""
    governor, divergence = built.governor, parts.divergence
    assert isinstance(governor, PlanGovernor)
    assert isinstance(divergence, TreeDivergence)
    rounds = VotedRounds(parts, governor.decision.sync_every)
    rounds.control = RoundControl(governor, built.timer, built.feedback, lambda local: None, rank, timeout)
    rounds.shared = divergence.shared
    rounds.shared.vote = PeriodVote(governor.proposed_period)
    return rounds


def outer_parts(
    model: DistributedDataParallel,
    config: Config,
    built: BuiltSession,
    weights: GlobalWeights,
    outer: Optimizer,
    group: dist.ProcessGroup,
) -> OuterParts:
    """What outer exchanges of this model use."""
    timeout = config.transport.timeout
    buffers = {name: one for name, one in model.module.named_buffers() if name not in model.parameters_to_ignore}
    if built.reducer is None:
        average, meter = BufferAverage(buffers, group, timeout), DivergenceMeter(group, timeout)
    else:
        mean = TreeMean(built.reducer, len(weights.buckets))
        places = config.planning.places(group.size())
        shared = TreeRound(mean, built.session, group.rank(), places)
        average, meter = TreeBuffers(shared, buffers, group, timeout), TreeDivergence(shared, group, timeout)
    reporter = OuterReporter(built.event_bus, MonotonicClock())
    return OuterParts(built.session, weights, outer, average, meter, reporter, config.fragment_progress)


def watch_steps(counter: StepCounter, inner: object | None) -> None:
    """Count the steps of the given optimizer, or of the first one that steps the model."""
    if inner is not None:
        counter.bind(inner)
    else:
        watch(OptimizerSearch(counter))


def check_optimizer_given(config: Config, optimizer: object | None, outer: object | None) -> None:
    """Local steps change training, so `attach` guesses neither whose steps count nor that they are wanted."""
    if outer is not None and not config.local_steps:
        raise ConfigError(
            "outer: an outer optimizer steps the weights after local steps; pass sync_every too, as in 20"
        )
    if config.local_steps and (optimizer is None or optimizer in ([], ())):
        raise ConfigError(f"{config.local_steps} needs the optimizer whose steps count; {FIX}")


def check_supported(model: DistributedDataParallel) -> None:
    """ConfigError for a model that cannot have local steps."""
    if model.find_unused_parameters:
        raise ConfigError(
            "sync_every: with find_unused_parameters DDP exchanges messages at every step, which local steps avoid; "
            "construct DistributedDataParallel(..., find_unused_parameters=False)"
        )
    if not any(one.requires_grad for one in model.module.parameters()):
        raise ConfigError("sync_every: the model has no parameters to train")
