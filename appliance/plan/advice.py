"""What would be faster or hold more on this machine: changes of one field, each planned whole and estimated anew."""

from collections.abc import Callable, Iterator

import msgspec

from appliance.hardware.speed import Speed
from appliance.plan.accelerators import eight_bits
from appliance.plan.estimate import PROMPT, Estimate, Workload, estimate
from appliance.plan.fit import SHORTEST_CONTEXT, Change, changed_inputs
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.plan.programs import program_of
from appliance.plan.types import EnginePlan

WORTH = 0.05  # a smaller gain is noise

Planner = Callable[[PlanInputs], tuple[EnginePlan, Ledger]]


class Figures(msgspec.Struct, frozen=True):
    """Figures by which two plans are compared. Greater is better, except for `itl_s`."""

    prefill_tokens_per_s: float
    decode_tokens_per_s: float  # of one stream alone
    output_tokens_per_s: float  # of all places together
    itl_s: float  # with all places taken
    cache_tokens: int


class Advice(msgspec.Struct, frozen=True):
    """`gains` and `losses`: figure -> new over old, of what changes by more than WORTH."""

    change: Change
    before: Figures
    after: Figures
    gains: dict[str, float]
    losses: dict[str, float]


def figures(plan: EnginePlan, inputs: PlanInputs, speed: Speed) -> Figures | None:
    """Returns the figures of a plan; None when it has no estimate."""
    program = program_of(plan, inputs.model, inputs.programs)
    alone = estimate(plan, program, speed, Workload())
    full = estimate(plan, program, speed, full_batch(plan))
    if alone is None or full is None:
        return None
    return Figures(
        prefill_tokens_per_s=alone.prefill_tokens_per_s,
        decode_tokens_per_s=alone.decode_tokens_per_s,
        output_tokens_per_s=full.output_tokens_per_s,
        itl_s=full.itl_s,
        cache_tokens=plan.cache.num_blocks * plan.cache.block_size,
    )


def full_batch(plan: EnginePlan) -> Workload:
    """Every place taken, as far as the cache holds that many requests of this size."""
    fitting = plan.cache.num_blocks * plan.cache.block_size // (PROMPT + Workload().answer)
    return Workload(streams=max(1, min(plan.scheduler.max_num_seqs, fitting)))


def advise(inputs: PlanInputs, plan: EnginePlan, speed: Speed, planner: Planner) -> list[Advice]:
    """Changes that gain something, the greatest gain first. What each costs beside speed is in its note."""
    before = figures(plan, inputs, speed)
    if before is None:
        return []
    found = []
    for ladder in _ladders(inputs, plan):
        tried = (_advice(inputs, plan, before, speed, planner, change) for change in ladder)
        found += [advice for advice in tried if advice is not None][:1]
    return sorted(found, key=lambda each: -max(each.gains.values()))


def missed_bounds(plan: EnginePlan, alone: Estimate, full: Estimate) -> list[str]:
    """Declared targets that not even the floor meets, of a prompt alone and of tokens with every place taken."""
    floors = {"ttft": alone.ttft_s, "itl": full.itl_s, "tpot": full.itl_s}
    return [
        f"slo.{name} of {bound:g} s cannot be met: at best it is {floor:.3g} s with {_with(name, full)}"
        for name, bound in plan.slo.items()
        if (floor := floors.get(name.partition("_")[0])) is not None and floor > bound
    ]


def _with(name: str, full: Estimate) -> str:
    return f"a prompt of {PROMPT} tokens" if name.startswith("ttft") else f"{full.workload.streams} streams"


def _advice(
    inputs: PlanInputs, plan: EnginePlan, before: Figures, speed: Speed, planner: Planner, change: Change
) -> Advice | None:
    changed = changed_inputs(inputs, change)
    other, ledger = planner(changed)
    if ledger.refusals or ledger.misfits or other.engine_sha256 == plan.engine_sha256:
        return None
    after = figures(other, changed, speed)
    if after is None:
        return None
    ratios = {
        "prefill": after.prefill_tokens_per_s / before.prefill_tokens_per_s,
        "decode": after.decode_tokens_per_s / before.decode_tokens_per_s,
        "throughput": after.output_tokens_per_s / before.output_tokens_per_s,
        "itl": before.itl_s / after.itl_s,
        "cache": after.cache_tokens / before.cache_tokens,
    }
    bound = min((each for name, each in plan.slo.items() if name.startswith(("itl", "tpot"))), default=None)
    if bound is not None and before.itl_s <= bound < after.itl_s:
        return None
    gains = {name: ratio for name, ratio in ratios.items() if ratio > 1 + WORTH}
    losses = {name: ratio for name, ratio in ratios.items() if ratio < 1 / (1 + WORTH)}
    if set(gains) == {"itl"} and (bound is None or not after.itl_s <= bound < before.itl_s):
        return None  # fewer at once are always quicker: worth it only to keep what was promised
    return Advice(change, before, after, gains, losses) if gains else None


def _ladders(inputs: PlanInputs, plan: EnginePlan) -> Iterator[list[Change]]:
    """Yields each field's values from the mildest; the first that gains something is advised."""
    spec, cpu, scheduler = inputs.spec, inputs.facts.cpu, plan.scheduler
    on_cpu = plan.device == "cpu"
    if on_cpu and plan.kernels.num_threads != cpu.num_cores:
        yield [Change("hardware.num_threads", cpu.num_cores, "one a physical core")]
    if plan.precision.kv_dtype == "f32":
        yield [Change("cache.dtype", "bfloat16", "keys and values are rounded")]
    if inputs.model.quantization is None and spec.model.quantization in (AUTO, "none"):
        yield [Change("model.quantization", *eight_bits(inputs))]
    if inputs.model.quantization is None and spec.model.quantization != "int4":
        yield [Change("model.quantization", "int4", "weights are rounded to 4 bits")]
    if on_cpu and not plan.precision.quantize_activations:
        yield [Change("hardware.kernels.quantize_activations", True, "activations are rounded to 8 bits")]
    yield [Change("scheduler.max_num_seqs", 2 * scheduler.max_num_seqs, "more at the same time")]
    halves = [scheduler.max_num_seqs >> power for power in range(1, scheduler.max_num_seqs.bit_length())]
    yield [Change("scheduler.max_num_seqs", each, "fewer at the same time") for each in halves]
    yield [Change("scheduler.max_num_batched_tokens", 2 * scheduler.max_num_batched_tokens, "more memory for a step")]
    if plan.model.max_model_len // 2 >= SHORTEST_CONTEXT:
        yield [Change("model.max_model_len", plan.model.max_model_len // 2, "shorter sequences")]
