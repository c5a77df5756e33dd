"""compile_plan: the passes in their order. Pure: plain data in, plain data out."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import msgspec

from appliance import __version__
from appliance.base.errors import FitError, SpecError
from appliance.base.hashing import sha256_json
from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import ModelFacts
from appliance.hardware.facts import HardwareFacts
from appliance.hardware.profile import Profile
from appliance.models.describe import Described
from appliance.plan.adapters import plan_adapters
from appliance.plan.batching import plan_scheduler
from appliance.plan.by_rank import check_by_rank
from appliance.plan.cache import plan_block_size, plan_cache
from appliance.plan.context import ContextRequest, config_overrides, request_context
from appliance.plan.describe import describe_model
from appliance.plan.draft_head import Head, find_head, kept_states
from appliance.plan.draft_model import DraftingSizes, plan_draft_model
from appliance.plan.embeds import embeds_width, plan_embeds
from appliance.plan.expert_ranks import check_experts
from appliance.plan.experts import plan_experts
from appliance.plan.features import check_compatibility, refuse_unbuilt
from appliance.plan.fit import with_suggestions
from appliance.plan.graphs import plan_graphs
from appliance.plan.hashes import with_hashes
from appliance.plan.inputs import PlanInputs, ResolvedFiles
from appliance.plan.kernels import plan_kernels, select_kernel_set
from appliance.plan.ledger import Ledger
from appliance.plan.loading import plan_loading
from appliance.plan.memory import plan_memory
from appliance.plan.memory_needs import MemoryNeeds
from appliance.plan.model import plan_model
from appliance.plan.modelling import Modelled, plan_modelling
from appliance.plan.offload import plan_offload
from appliance.plan.overrides import with_config_overrides
from appliance.plan.parallel import check_collectives, plan_parallel, share_program
from appliance.plan.parallel_types import ParallelPlan
from appliance.plan.pooling import described_pooling, plan_pooling
from appliance.plan.precision import plan_precision
from appliance.plan.program import PlannedProgram
from appliance.plan.restart import plan_restart
from appliance.plan.screen import request_screen
from appliance.plan.serving import plan_batch, plan_bench, plan_serving, plan_slo
from appliance.plan.sleep import check_sleep
from appliance.plan.speculation import plan_speculation, with_draft_model, with_drafts, with_states
from appliance.plan.types import (
    EnginePlan,
    KernelPlan,
    PoolingPlan,
    PrecisionPlan,
    SchedulerPlan,
    SpeculationPlan,
)
from appliance.plan.weight_updates import check_weight_updates
from appliance.spec import LoadedSpec


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of the passes, before the ledger is judged."""

    plan: EnginePlan
    ledger: Ledger


def compile_plan(
    loaded: LoadedSpec,
    facts: HardwareFacts,
    profile: Profile,
    model: ModelFacts,
    files: ResolvedFiles | None = None,
) -> EnginePlan:
    """The plan of a deployment on a machine.

    `files`: what the spec names by path, already read. Raises SpecError for what cannot be or is not in this version,
    FitError (with single-field changes that were checked to help) where the machine is too small.
    """
    inputs = PlanInputs(loaded=loaded, facts=facts, profile=profile, model=model, files=files or ResolvedFiles())
    outcome = run_passes(inputs)
    if outcome.ledger.refusals:
        raise SpecError(outcome.ledger.refusals)
    if outcome.ledger.misfits:
        raise FitError(with_suggestions(inputs, outcome.ledger.misfits, lambda changed: run_passes(changed).ledger))
    return outcome.plan


def run_passes(inputs: PlanInputs) -> Outcome:
    ledger = Ledger(inputs.loaded)
    refuse_unbuilt(inputs, ledger)
    inputs = dataclasses.replace(inputs, model=_overridden(inputs, ledger))
    context, head = request_context(inputs, ledger), find_head(inputs, ledger)
    modelled, described, pooling = _describe(inputs, context.limit, head, ledger)
    parallel = plan_parallel(inputs, ledger)
    chosen = (selection := select_kernel_set(inputs, modelled, ledger)).chosen
    check_collectives(inputs, chosen, ledger)
    precision, whole = plan_precision(inputs, described, chosen, ledger)
    program = share_program(whole, parallel, ledger)
    kernels = plan_kernels(inputs, selection, program, precision, ledger)
    scheduler, speculation = _plan_steps(inputs, context, pooling, ledger)
    block_size = plan_block_size(inputs, chosen, ledger)
    drafting = DraftingSizes(context.limit, scheduler, block_size, kernels.num_threads, program)
    needs = MemoryNeeds(
        precision=precision,
        program=program,
        parallel=parallel,
        scheduler=scheduler,
        context=context,
        block_size=block_size,
        num_threads=kernels.num_threads,
        batch_invariant=kernels.batch_invariant,
        screen=request_screen(inputs, program, precision, ledger),
        graphs=plan_graphs(inputs, selection.chosen, scheduler, ledger),
        offload=plan_offload(inputs, program, chosen, parallel, ledger),
        speculation=speculation,
        adapters=plan_adapters(inputs, whole, _shared(parallel, program), pooling, context.limit, ledger),
        draft_model=plan_draft_model(inputs, drafting, chosen, head, ledger),
    )
    planned = plan_memory(inputs, needs, ledger)
    _check_weights(inputs, chosen, parallel, precision, modelled, ledger)
    model = msgspec.structs.replace(
        plan_model(inputs, context, modelled, ledger),
        max_model_len=planned.max_model_len,
        experts=check_experts(parallel, plan_experts(program, ledger), ledger, has_adapters=needs.adapters is not None),
        **_of_program(described, pooling, head, ledger),
    )
    plan = EnginePlan(
        **_named(inputs, ledger),
        model=model,
        loading=plan_loading(inputs, chosen, parallel, ledger),
        precision=precision,
        kernels=_with_memory(kernels, screen_logits=planned.screen_logits, streamed=needs.offload.layers),
        graphs=needs.graphs,
        memory=planned.memory,
        cache=plan_cache(inputs, needs.block_size, planned, pooling, ledger),
        scheduler=scheduler,
        speculation=with_draft_model(
            with_states(speculation, planned.num_draft_states), needs.draft_model, planned.num_draft_blocks, program
        ),
        adapters=None if needs.adapters is None else needs.adapters.plan,
        parallel=parallel,
        serving=plan_serving(inputs, model, ledger),
        slo=plan_slo(inputs, model, ledger),
        batch=plan_batch(inputs, scheduler.max_num_seqs),
        **_told(ledger),
    )
    return Outcome(with_hashes(plan), ledger)


def _with_memory(kernels: KernelPlan, *, screen_logits: bool, streamed: tuple[int, ...]) -> KernelPlan:
    """Returns the kernels with what the pass `memory` decided for them."""
    return msgspec.structs.replace(kernels, screen_logits=screen_logits, streamed_layers=streamed)


def _named(inputs: PlanInputs, ledger: Ledger) -> dict[str, Any]:
    """What is planned, for which machine, and what is the spec's as it is. Digests are made of the whole plan."""
    return {
        "restart": plan_restart(inputs, ledger),
        "bench": plan_bench(inputs),
        "spec_sha256": inputs.loaded.sha256,
        "engine_sha256": "",
        "serving_sha256": "",
        "appliance_version": __version__,
        "name": inputs.spec.name,
        "device": inputs.profile.device,
        "hardware": inputs.facts.name,
        "hardware_sha256": sha256_json(msgspec.to_builtins(inputs.facts)),
        "profile": inputs.profile.name,
    }


def _told(ledger: Ledger) -> dict[str, Any]:
    """What the passes said."""
    return {
        "decisions": tuple(ledger.decisions),
        "warnings": tuple(ledger.warnings),
        "degraded": tuple(dict.fromkeys(ledger.degraded)),
        "cannot_run": tuple(ledger.cannot_run),
    }


def _plan_steps(
    inputs: PlanInputs, context: ContextRequest, pooling: PoolingPlan | None, ledger: Ledger
) -> tuple[SchedulerPlan, SpeculationPlan | None]:
    """What a step may run, with rows of logits for the drafts that it may verify."""
    speculation = plan_speculation(inputs, pooling, ledger)
    return with_drafts(plan_scheduler(inputs, context, pooling, ledger), speculation), speculation


def _describe(
    inputs: PlanInputs, max_model_len: int, head: Head | None, ledger: Ledger
) -> tuple[Modelled, Described, PoolingPlan | None]:
    """Whose code runs the model, its program, and how it pools."""
    modelled = plan_modelling(inputs, ledger)
    pooling = plan_pooling(inputs, modelled, ledger)
    takes_embeds = plan_embeds(inputs, modelled, pooling, ledger)
    wanted = (modelled, pooling, ledger, kept_states(head))
    described = describe_model(inputs, max_model_len, *wanted, takes_embeds=takes_embeds)
    return modelled, described, described_pooling(pooling, described)


def _shared(parallel: ParallelPlan, program: PlannedProgram) -> ParallelPlan:
    """Returns the plan of ranks, without what the program cannot be divided by, which is refused."""
    layers = parallel.layers if program.stages else ()
    is_spread = parallel.expert and program.num_replicas == parallel.data
    return msgspec.structs.replace(parallel, tensor=program.num_ranks, layers=layers, expert=is_spread)


def _of_program(described: Described, pooling: PoolingPlan | None, head: Head | None, ledger: Ledger) -> dict[str, Any]:
    """What the model's plan says of how it pools, of what it keeps for a drafting head, and of embeddings that it
    takes."""
    told: dict[str, Any] = {"embeds_width": embeds_width(described, ledger)}
    told |= {} if pooling is None else {"task": pooling.task, "pooling": pooling}
    return told if head is None else {**told, "kept_layers": head.keeps.layers}


def _overridden(inputs: PlanInputs, ledger: Ledger) -> ModelFacts:
    overrides = config_overrides(inputs.spec, inputs.model)
    try:
        return with_config_overrides(inputs.model, overrides)
    except CheckpointError as error:
        path = "model.rope_scaling" if inputs.spec.model.rope_scaling else "model.rope_theta"
        ledger.refuse(path, "plan/rope", error.problem, hint=error.hint or f"remove {path}")
        return inputs.model


def _check_weights(
    inputs: PlanInputs,
    chosen: KernelSetFacts,
    parallel: ParallelPlan,
    precision: PrecisionPlan,
    modelled: Modelled,
    ledger: Ledger,
) -> None:
    """Refuses weights that are not those of the plan, and what a running engine could not do with them."""
    check_compatibility(inputs, ledger)
    check_sleep(inputs, chosen, parallel, ledger)
    check_weight_updates(inputs, parallel, ledger, is_modelled=modelled.plan is not None)
    check_by_rank(inputs, precision, parallel, ledger)
