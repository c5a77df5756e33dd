"""Single-field changes that make a plan fit, each checked by running the passes again."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from appliance.base.diagnostics import Diagnostic
from appliance.plan.accelerators import eight_bits
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.plan.offload import PATH
from appliance.plan.parallel import num_devices
from appliance.spec import DeploymentSpec
from appliance.spec.fields import Section
from appliance.spec.nodes import Position

Check = Callable[[PlanInputs], Ledger]
GIB = 1 << 30
SHORTEST_CONTEXT = 512  # tokens; a shorter context is of no use


@dataclass(frozen=True, slots=True)
class Change:
    """One field, from what it is to what would fit. `note` says what it costs."""

    path: str
    value: Any
    note: str
    shown: str = ""  # the value as a spec has it, where that is not how Python writes it

    def __str__(self) -> str:
        value = self.shown or (str(self.value).lower() if isinstance(self.value, bool) else self.value)
        return f"{self.path}: {value}" + (f" ({self.note})" if self.note else "")


def with_suggestions(inputs: PlanInputs, misfits: Sequence[Diagnostic], check: Check) -> list[Diagnostic]:
    """The misfits, the first with the changes that help; cheapest first."""
    changes = [str(change) for change in helpful_changes(inputs, check)]
    if changes:
        hint = "any one of these makes it fit: " + "; ".join(changes)
    else:
        hint = "no change of one field makes it fit; a smaller model or a larger machine does"
    return [dataclasses.replace(misfits[0], hint=hint), *misfits[1:]]


def helpful_changes(inputs: PlanInputs, check: Check) -> list[Change]:
    """Returns changes in the order of their cost: first memory taken from elsewhere, then speed, context, precision."""
    found = []
    for ladder in _ladders(inputs):
        helping = next((change for change in ladder if _fits(inputs, change, check)), None)
        if helping is not None:
            found.append(helping)
    return found


def _ladders(inputs: PlanInputs) -> Iterator[list[Change]]:
    """Yields each field's values from the mildest; the first that fits is suggested."""
    spec = inputs.spec
    memory, scheduler = spec.hardware.memory, spec.scheduler
    if memory.kv_cache != AUTO:
        yield [Change("hardware.memory.kv_cache", AUTO, "what is left after the weights")]
    if spec.cache.num_blocks != AUTO:
        yield [Change("cache.num_blocks", AUTO, "what is left after the weights")]
    if spec.hardware.kernels.screen_logits is True:
        yield [Change("hardware.kernels.screen_logits", AUTO, "only where there is room")]
    yield [
        Change("hardware.memory.utilization", share, "less for other processes")
        for share in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97)
        if share > memory.utilization
    ]
    tokens = inputs.profile.defaults.max_num_batched_tokens
    tokens = tokens if scheduler.max_num_batched_tokens == AUTO else int(scheduler.max_num_batched_tokens)
    yield [
        Change("scheduler.max_num_batched_tokens", size, "longer prompts take more steps")
        for size in (8192, 4096, 2048, 1024, 512, 256, 128)
        if size < tokens
    ]
    seqs = inputs.profile.defaults.max_num_seqs if scheduler.max_num_seqs == AUTO else int(scheduler.max_num_seqs)
    yield [Change("scheduler.max_num_seqs", n, "fewer at the same time") for n in (64, 32, 16, 8, 4, 1) if n < seqs]
    yield _cache_types(inputs)
    yield _contexts(inputs)
    yield _offloads(inputs)
    yield _precisions(inputs)
    yield _ranks(inputs)


def _cache_types(inputs: PlanInputs) -> list[Change]:
    if inputs.profile.device != "cpu" or inputs.spec.cache.dtype not in (AUTO, "float32"):
        return []
    is_f32 = inputs.spec.cache.dtype == "float32" or inputs.spec.model.dtype in ("float32", "float")
    return [Change("cache.dtype", "bfloat16", "keys and values are rounded")] if is_f32 else []


def _contexts(inputs: PlanInputs) -> list[Change]:
    wanted = inputs.spec.model.max_model_len
    if wanted == AUTO:
        return []
    lengths = [131072, 98304, 65536, 49152, 32768, 24576, 16384, 12288, 8192, 6144, 4096, 3072, 2048, 1024, 512]
    return [
        Change("model.max_model_len", size, "shorter sequences")
        for size in lengths
        if SHORTEST_CONTEXT <= size < int(wanted)
    ]


def _offloads(inputs: PlanInputs) -> list[Change]:
    if inputs.profile.device == "cpu":
        return []
    sizes = [gib for gib in (4, 8, 16, 32, 64, 128, 256) if gib * GIB <= inputs.facts.memory.limit_bytes // 2]
    note = "each step copies them from host memory"
    present = inputs.spec.hardware.memory.cpu_offload
    return [Change(PATH, gib * GIB, note, f"{gib}GiB") for gib in sizes if gib * GIB > present]


def _precisions(inputs: PlanInputs) -> list[Change]:
    model = inputs.spec.model
    if inputs.model.quantization is not None:
        if model.quantization == "none":
            return [Change("model.quantization", AUTO, "weights as they are stored")]
        return []
    ladder = []
    if model.dtype in ("float32", "float") and model.quantization in (AUTO, "none"):
        ladder.append(Change("model.dtype", "bfloat16", "weights are rounded"))
    if model.quantization in (AUTO, "none"):
        ladder.append(Change("model.quantization", *eight_bits(inputs)))
    if model.quantization != "int4":
        ladder.append(Change("model.quantization", "int4", "weights are rounded to 4 bits"))
    return ladder


def _ranks(inputs: PlanInputs) -> list[Change]:
    if inputs.profile.device == "cpu":
        return []
    note = "not in this version"
    there, used = num_devices(inputs), inputs.spec.parallelism.tensor
    return [Change("parallelism.tensor", n, note) for n in (2, 4, 8, 16) if used < n <= there]


def _fits(inputs: PlanInputs, change: Change, check: Check) -> bool:
    ledger = check(changed_inputs(inputs, change))
    allowed = {change.path} if change.path.startswith("parallelism.") else set()
    return not ledger.misfits and all(refusal.path in allowed for refusal in ledger.refusals)


def changed_inputs(inputs: PlanInputs, change: Change) -> PlanInputs:
    """Returns the inputs with the change made in the spec."""
    spec = _replaced(inputs.spec, change.path.split("."), change.value)
    positions = {**inputs.loaded.positions, change.path: Position(1, 1)}
    assert isinstance(spec, DeploymentSpec)
    return dataclasses.replace(inputs, loaded=dataclasses.replace(inputs.loaded, spec=spec, positions=positions))


def _replaced(section: Section, path: Sequence[str], value: Any) -> Section:
    name, *rest = path
    inner = _replaced(getattr(section, name), rest, value) if rest else value
    return section.model_copy(update={name: inner})
