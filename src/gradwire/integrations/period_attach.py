"""Period attach: builds local steps for a DDP model, where gradwire chooses their number (`sync_every = "auto"`)."""

from __future__ import annotations

from torch.nn.parallel import DistributedDataParallel

from gradwire.config import Config
from gradwire.errors import GradwireError
from gradwire.exchange.verify import digest_of
from gradwire.integrations.ddp_hook import register
from gradwire.integrations.local_attach import LocalOptimizers, check_supported, outer_parts, watch_steps
from gradwire.integrations.optimizer_kind import watch_optimizer
from gradwire.integrations.period_handle import PeriodHandle, PeriodParts
from gradwire.integrations.period_hook import PeriodHook
from gradwire.integrations.scaler_search import ScalerSearch
from gradwire.local_steps.adaptive_rounds import AdaptiveRounds, RoundControl
from gradwire.local_steps.global_weights import GlobalWeights
from gradwire.local_steps.model_parameters import ModelParameters, optimizers_of
from gradwire.local_steps.outer_optimizer import make_outer, name_of
from gradwire.local_steps.step_counter import StepCounter
from gradwire.runtime.builder import BuiltSession, build


def attach_period(model: DistributedDataParallel, config: Config, optimizers: LocalOptimizers) -> PeriodHandle:
    """Every rank calls this at the same point, with equal weights."""
    parameters = ModelParameters.of(model.module, model.parameters_to_ignore)
    check_supported(model)
    if optimizers.inner is not None:
        parameters.check(*optimizers_of(optimizers.inner))
    built = build(config, model.process_group, parameters.numel, on_cpu=parameters.on_cpu)
    parts = _parts(model, config, optimizers, parameters, built)
    handle = PeriodHandle(built, config, parts)
    try:
        digest = digest_of([one.flat for one in parts.rounds.weights.buckets])
        built.check_facts({"outer": name_of(config.outer, optimizers.outer), "the model's weights": f"hash {digest}"})
        register(model, parts.hook)
    except GradwireError:
        handle.close()
        raise
    ScalerSearch(model, handle)
    watch_steps(parts.counter, optimizers.inner)
    watch_optimizer(model.module.parameters(), built.sampler)
    return handle


def _parts(
    model: DistributedDataParallel,
    config: Config,
    optimizers: LocalOptimizers,
    parameters: ModelParameters,
    built: BuiltSession,
) -> PeriodParts:
    weights = GlobalWeights(parameters.trained.items())
    outer = make_outer(config.outer, optimizers.outer, weights.parameters)
    rounds = AdaptiveRounds(outer_parts(model, config, built, weights, outer, model.process_group), 1)
    counter = StepCounter(parameters, rounds.count_step)
    hook = PeriodHook(model, built.session, built.feedback)

    def on_change(local: bool) -> None:
        hook.change_mode(local)
        if not local:
            counter.equalise(model.process_group, config.transport.timeout)

    rank, timeout = model.process_group.rank(), config.transport.timeout
    rounds.control = RoundControl(built.governor, built.timer, built.feedback, on_change, rank, timeout)
    return PeriodParts(rounds, counter, hook)
