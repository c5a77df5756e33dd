"""Loads what a plan names: the executable, and the size of its vocabulary."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from appliance.base.environ import cache_dir
from appliance.base.errors import ApplianceError
from appliance.checkpoint.facts import ModelFacts
from appliance.engine.adapters import AdapterStore
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.ranks.group import RankGroup
from appliance.engine.ranks.share import Parts, Share
from appliance.engine.ranks.stage_share import StageShare
from appliance.engine.ranks.stages import StagedGroup
from appliance.engine.scripted import Script, ScriptedExecutable, scripted_model
from appliance.kernels.binding import load_kernel_set, load_model_set
from appliance.kernels.execution import Execution, ExecutionLimits, Graphs, Numerics, Placement
from appliance.kernels.interface import Executable
from appliance.kernels.lockstep import Lockstep
from appliance.kernels.reports import WeightsReport
from appliance.kernels.stage_inputs import StageInputs
from appliance.loading.model import LoadedModel, ReadWeights, load_model
from appliance.loading.modelled import load_modelled
from appliance.loading.moved_experts import MovedExperts
from appliance.loading.updates import OtherWeights
from appliance.models.facts import read_facts
from appliance.models.outside import check_installed
from appliance.plan.overrides import with_config_overrides
from appliance.plan.types import SCRIPTED, EnginePlan
from appliance.program.adapters import num_adapter_slots

PACKED_FOLDER = "packed"  # in the cache folder

Progress = Callable[[str, int, int], None]  # (phase, done, total)


_NO_GROUP = "the plan is of replicas that have the experts among them, and this engine was started alone"


class PlanMismatchError(ApplianceError):
    """The checkpoint on this machine is not the one that was planned."""


@dataclass(frozen=True, slots=True)
class Backend:
    executable: Executable
    vocab_size: int
    weights: WeightsReport | None = None  # None for a scripted backend, which has no weights
    adapters: AdapterStore | None = None  # with those that the plan serves; None: it has no places for any
    parts: Parts = field(default_factory=dict)  # as in LoadedModel
    read_weights: ReadWeights | None = None  # as there
    stage: StageInputs | None = None  # as there
    source: OtherWeights | None = None  # as there
    experts: MovedExperts | None = None  # as there


def load_backend(
    plan: EnginePlan, config: SchedulerConfig, progress: Progress, lockstep: Lockstep | None = None
) -> Backend:
    """Loads the planned model. lockstep: the replicas with which it has the experts among them.

    Raises PlanMismatchError, and the ApplianceErrors of reading the checkpoint, loading the kernel set and binding.
    """
    if plan.kernels.kernel_set == SCRIPTED:
        return _scripted(plan, config, progress)
    if plan.parallel.num_ranks > 1:
        return _grouped(plan, config, progress, lockstep)
    return load_share(plan, config, None, progress, lockstep)


def load_share(
    plan: EnginePlan,
    config: SchedulerConfig,
    share: Share | None,
    progress: Progress,
    lockstep: Lockstep | None = None,
) -> Backend:
    """Loads what one rank, or one of several replicas, has of the model; all of it without either. lockstep: of a
    replica without ranks, whose shares have it. Raises like load_backend."""
    progress("headers", 0, 1)
    lockstep = lockstep if share is None else share.lockstep
    if plan.parallel.spreads_experts and lockstep is None:
        raise PlanMismatchError(_NO_GROUP, hint="start the server of the plan, which starts all replicas")
    facts, execution = planned_facts(plan), execution_of(plan, config, 0 if share is None else share.number)
    if lockstep is not None:
        execution = replace(execution, lockstep=lockstep, experts=plan.parallel.placing)
    if share is not None:
        placement = _placed(execution.placement, plan, share.number)
        execution = replace(execution, ranks=share.ranks, stage=share.stage, placement=placement)
        execution = replace(execution, experts=plan.parallel.placing)
    loaded = _load(plan, facts, execution, progress)
    adapters = _adapters(plan, loaded, progress) if share is None or share.is_leader else None
    found = (loaded.executable, facts.geometry.vocab_size, loaded.weights, adapters, loaded.parts)
    return Backend(*found, loaded.read_weights, loaded.stage, loaded.source, loaded.experts)


def _grouped(plan: EnginePlan, config: SchedulerConfig, progress: Progress, lockstep: Lockstep | None) -> Backend:
    own: list[Backend] = []

    def load_own(share: Share) -> StageShare:
        own.append(load_share(plan, config, share, progress))
        return StageShare(own[0].executable, share, own[0].stage, own[0].parts, own[0].experts)

    kind = RankGroup if plan.parallel.pipeline == 1 else StagedGroup
    group = kind.load(plan, config, load_own, progress, lockstep)
    return replace(own[0], executable=group)


def planned_facts(plan: EnginePlan) -> ModelFacts:
    """Returns the facts of the planned checkpoint. Raises PlanMismatchError if it is another one by now, and
    PluginError if its family is of a package that is another one by now."""
    family = plan.model.family
    find = None if family is None else lambda _: check_installed(family)
    facts = read_facts(
        Path(plan.model.path), cache_dir(), plan.model.format, plan.model.config, find, plan.model.loader
    )
    if facts.header_sha256 != plan.model.header_sha256:
        raise PlanMismatchError(
            f"the checkpoint at {plan.model.path} is not the one that was planned", hint="plan again: appliance plan"
        )
    return with_config_overrides(facts, plan.model.config_overrides)


def _adapters(plan: EnginePlan, loaded: LoadedModel, progress: Progress) -> AdapterStore | None:
    """Loads the adapters that the plan serves. Raises like AdapterStore.load."""
    if plan.adapters is None or loaded.adapters is None:
        return None
    store = AdapterStore(loaded.adapters, plan.adapters.dtype)
    for number, adapter in enumerate(plan.adapters.served):
        progress("adapters", number, len(plan.adapters.served))
        store.load(adapter)
    return store


def _load(plan: EnginePlan, facts: ModelFacts, execution: Execution, progress: Progress) -> LoadedModel:
    progress("kernels", 0, 1)
    if plan.model.modelling is not None:
        model_set = load_model_set()
        progress("weights", 0, facts.size_bytes)
        return load_modelled(plan, plan.model.modelling, facts, model_set, execution)
    kernel_set = load_kernel_set(plan.kernels.kernel_set)
    progress("weights", 0, facts.size_bytes)
    folder = cache_dir() / PACKED_FOLDER
    return load_model(plan, facts, kernel_set, execution, lambda done, total: progress("weights", done, total), folder)


def execution_of(plan: EnginePlan, config: SchedulerConfig, rank: int = 0) -> Execution:
    limits = ExecutionLimits(
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        max_num_sampled=config.max_num_sampled,
        max_model_len=config.max_model_len,
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        num_states=config.num_states,
        max_loras=num_adapter_slots(config.max_loras),
    )
    precision = plan.precision
    numerics = Numerics(
        precision.kv_dtype,
        precision.quantize_activations,
        activation_dtype=precision.activations,
        batch_invariant=plan.kernels.batch_invariant,
    )
    if plan.adapters is not None:
        numerics = replace(numerics, lora_dtype=plan.adapters.dtype)
    kernels = plan.kernels
    switches = (kernels.share_prefixes, kernels.screen_logits)
    memory = sum(item.size_bytes for item in plan.memory[0].items if item.name != "context")
    cpus, nodes = (each[rank] if each else () for each in (kernels.cpus, kernels.nodes))
    placement = Placement(
        kernels.num_threads, plan.device, *switches, cpus, nodes, kernels.lock_memory, memory, kernels.streamed_layers
    )
    graphs = Graphs(plan.graphs.decode_sizes, plan.graphs.token_sizes, plan.graphs.max_seq_len)
    return Execution(limits, numerics, placement, graphs)


def _placed(placement: Placement, plan: EnginePlan, rank: int) -> Placement:
    """Returns where a rank runs: each has a GPU of its own among those of its machine."""
    number = rank % (plan.parallel.num_ranks // plan.parallel.nnodes)
    return placement if placement.device == "cpu" else replace(placement, device=f"{placement.device}:{number}")


def _scripted(plan: EnginePlan, config: SchedulerConfig, progress: Progress) -> Backend:
    script = Script.read(Path(plan.model.path))
    progress("load", 0, 1)
    time.sleep(script.load_seconds)
    executable = ScriptedExecutable(
        scripted_model(script), script.vocab_size, config.num_blocks, config.block_size, script
    )
    return Backend(executable, script.vocab_size)
