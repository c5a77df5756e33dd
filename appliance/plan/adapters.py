"""Pass `adapters`: their slots, their memory, and which are served."""

from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from appliance.base.units import format_size
from appliance.checkpoint.adapter import AdapterFacts
from appliance.layers.adapters import Wanted, adapted_weights, with_adapters
from appliance.models.adapter_places import AdapterError, AdapterPlaces
from appliance.models.adapters import kinds_needed, place_filter, trained_weights, whole_weights
from appliance.plan.adapter_files import adapter_plan
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.plan.parallel_types import ParallelPlan
from appliance.plan.program import PlannedProgram
from appliance.plan.types import AdapterPlan, AdaptersPlan, MemoryItem, PoolingPlan
from appliance.program.adapters import adapter_slot_bytes, num_adapter_slots
from appliance.program.head_cuts import UncutError
from appliance.spec.sections.lora import AdapterSection, LoraSection

_RULE = "plan/adapters"
_TYPES: dict[str, Literal["f32", "bf16"]] = {"float32": "f32", "bfloat16": "bf16"}


@dataclass(frozen=True)
class PlannedAdapters:
    """The plan of adapters, and the program with places for them: that of one rank, and that of all together."""

    plan: AdaptersPlan
    program: PlannedProgram
    whole: PlannedProgram

    def stage(self, number: int) -> "PlannedAdapters":
        """Returns what a stage has of them."""
        return replace(self, program=self.program.stages[number])

    @property
    def slot_bytes(self) -> int:
        return adapter_slot_bytes(self.program.program.operators, self.plan.dtype)

    def items(self) -> tuple[MemoryItem, MemoryItem]:
        """Returns the memory of the slots, and of the adapters that are kept to be put into them."""
        count, kept, size = num_adapter_slots(self.plan.max_loras), self.plan.max_cpu_loras, self.slot_bytes
        whole = adapter_slot_bytes(self.whole.program.operators, self.plan.dtype)
        each = f"{format_size(size)} (rank {self.plan.max_rank} at {self.plan.num_modules} weights, {self.plan.dtype})"
        return (
            MemoryItem(
                name="adapters",
                size_bytes=count * size,
                formula=f"{count} slots x {each}, of which one is to check new adapters",
            ),
            MemoryItem(name="kept_adapters", size_bytes=kept * whole, formula=f"up to {kept} adapters x {each}"),
        )


def plan_adapters(
    inputs: PlanInputs,
    program: PlannedProgram,
    parallel: ParallelPlan,
    pooling: PoolingPlan | None,
    max_model_len: int,
    ledger: Ledger,
) -> PlannedAdapters | None:
    """Plans them for the ranks of a whole program. Returns None if the spec has no section, or adapters cannot be had
    with this model here."""
    spec = inputs.spec.lora
    if spec is None or _obstacle(program, pooling, ledger) or not program.described.spec.weights:
        return None
    if len(spec.adapters) != len(inputs.files.adapters):
        ledger.refuse("lora.adapters", _RULE, "the files of the adapters were not read", hint="plan from a spec file")
        return None
    targets = None if spec.target_modules is None else tuple(spec.target_modules)
    sources = trained_weights(inputs.model, max_model_len)
    modules = [module for facts in inputs.files.adapters for module in facts.modules]
    also = () if targets is not None else kinds_needed(sources, [module.name for module in modules])
    owned = [module.name for module in modules if module.whole is not None]
    wanted = Wanted(spec.max_rank, place_filter(sources, targets, also), whole_weights(sources, owned))
    adapted = with_adapters(program.described.compiled, wanted)
    shapes = adapted_weights(adapted)
    if not shapes:
        message = "no linear map of the model's layers may be changed by adapters"
        ledger.refuse("lora", _RULE, message, hint="remove lora.target_modules, or lora")
        return None
    _check_fit(spec, inputs, AdapterPlaces.of(inputs.model, max_model_len, adapted), ledger)
    compiled = msgspec.structs.replace(program.described.compiled, program=adapted)
    changed = replace(program, described=program.described._replace(compiled=compiled))
    plan = _plan(spec, inputs, program, len(shapes), ledger)
    plan = msgspec.structs.replace(plan, also=also, whole=tuple(sorted(wanted.whole)))
    try:
        spreads, of = parallel.spreads_experts, (parallel.data, parallel.placing, parallel.tensor)
        part = changed.spread(*of) if spreads else changed
        return PlannedAdapters(plan, part.in_stages(parallel.layers).share(parallel.tensor), changed)
    except UncutError as error:
        hint = "name the others in lora.target_modules, or write parallelism.tensor: 1"
        message = f"{parallel.num_ranks} ranks cannot have these adapters: {error}"
        if parallel.spreads_experts:
            hint = "name others than experts in lora.target_modules, or write parallelism.expert: false"
            message = f"{parallel.data} replicas with experts among them cannot have these adapters: {error}"
        ledger.refuse("lora", _RULE, message, hint=hint)
        return None


def _obstacle(program: PlannedProgram, pooling: PoolingPlan | None, ledger: Ledger) -> bool:
    """Refuses what cannot have adapters. Returns whether it did."""
    kernels, why = program.kernels, None
    if kernels.runs == "models" or kernels.device != "cpu":
        why = f"the kernel set {kernels.name} has no adapters in this version"
    elif pooling is not None:
        why = "a model that pools has no adapters in this version"
    if why is not None:
        ledger.refuse("lora", _RULE, why, hint="remove lora")
    return why is not None


def _plan(
    spec: LoraSection, inputs: PlanInputs, program: PlannedProgram, num_modules: int, ledger: Ledger
) -> AdaptersPlan:
    pairs = zip(spec.adapters, inputs.files.adapters, strict=True)
    return AdaptersPlan(
        max_loras=ledger.take("adapters.max_loras", "lora.max_loras", spec.max_loras),
        max_rank=ledger.take("adapters.max_rank", "lora.max_rank", spec.max_rank),
        dtype=_dtype(spec, program, ledger),
        target_modules=None if spec.target_modules is None else tuple(spec.target_modules),
        num_modules=num_modules,
        max_cpu_loras=_max_kept(spec, ledger),
        served=tuple(_served(at, wanted, facts, spec, ledger) for at, (wanted, facts) in enumerate(pairs)),
    )


def _check_fit(spec: LoraSection, inputs: PlanInputs, places: AdapterPlaces, ledger: Ledger) -> None:
    """Refuses adapters that do not fit the model, by the headers of their files, and tells what is odd about others."""
    for at, (wanted, facts) in enumerate(zip(spec.adapters, inputs.files.adapters, strict=True)):
        modules = [module for module in facts.modules if module.rank <= spec.max_rank]  # others are refused for that
        try:
            for module in modules:
                places.fit(module, facts.gguf_architecture)
        except AdapterError as error:
            ledger.refuse(
                f"lora.adapters[{at}].source", _RULE, f"the adapter {wanted.name}: {error}", hint=error.hint or ""
            )
        if not facts.has_effect:
            ledger.warnings.append(f"the adapter {wanted.name} adds nothing: what it has is zero")
        if facts.base_model is not None and not _is_named(facts.base_model, inputs.spec.model.source):
            told = f"the adapter {wanted.name} was trained on {facts.base_model}, by its config; it fits this model"
            ledger.warnings.append(f"{told}, which has another name")


def _is_named(base_model: str, source: str) -> bool:
    """Returns whether a model's source has the name of an adapter's base model."""
    return base_model.rstrip("/").rpartition("/")[2].lower() in source.lower()


def _max_kept(spec: LoraSection, ledger: Ledger) -> int:
    """Returns how many adapters may be in memory. Where requests bring some, there is room for a step's."""
    path, most, listed = "adapters.max_cpu_loras", spec.max_cpu_loras, len(spec.adapters)
    if most is None:
        is_fixed = not (spec.allow_runtime_updating or spec.resolver_dir or spec.resolver)
        reason = (
            "all that are listed" if is_fixed else "all that are listed, and at least max_loras, for those of requests"
        )
        return ledger.decide(path, listed if is_fixed else max(listed, spec.max_loras), "computed", reason)
    if listed > most:
        message = f"{listed} adapters are listed, and {most} may be in memory"
        ledger.refuse("lora.max_cpu_loras", _RULE, message, allowed=f"at least {listed}", hint="remove it")
    return ledger.take(path, "lora.max_cpu_loras", most)


def _dtype(spec: LoraSection, program: PlannedProgram, ledger: Ledger) -> Literal["f32", "bf16"]:
    path = "adapters.dtype"
    if spec.dtype in _TYPES:
        return ledger.take(path, "lora.dtype", _TYPES[spec.dtype])
    is_wide = spec.dtype == AUTO and all(form.layout == "f32" for form in program.forms.values())
    reason = "the matrices are f32" if is_wide else "half the memory of f32; sums are f32"
    return ledger.decide(path, "f32" if is_wide else "bf16", "computed", reason)


def _served(at: int, wanted: AdapterSection, facts: AdapterFacts, spec: LoraSection, ledger: Ledger) -> AdapterPlan:
    path, rank = f"lora.adapters[{at}]", facts.max_rank
    if rank > spec.max_rank:
        message = f"the adapter {wanted.name} has rank {rank}, and the slots are for ranks up to {spec.max_rank}"
        ledger.refuse(path, _RULE, message, hint=f"write lora.max_rank: {rank}")
    if wanted.rank is not None and rank > wanted.rank:
        message = f"the adapter {wanted.name} has rank {rank}"
        ledger.refuse(f"{path}.rank", _RULE, message, allowed=f"at least {rank}", hint="remove it")
    found = adapter_plan(wanted.name, facts)
    return msgspec.structs.replace(found, parent=wanted.base_model_name, scale=wanted.scale, pinned=wanted.pinned)
