"""What a plan can reach at best on a measured machine. Pure: the plan, the checkpoint's facts and measured figures.

A matrix costs the longer of reading its planned bytes and computing its products, with many rows at the rate that its
kernel was measured to reach, with few at the peak of the arithmetic; attention the longer of reading the
cached keys and values and computing with them; all follow one another (Williams et al. 2009, "Roofline"). What is left
out (norms, sampling, the way to the client, other processes) only makes it slower, so `bench` says how much is reached.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from appliance.catalog.formats import INTEGER_LAYOUTS, SIX_BIT_SCREEN_ROWS, is_unused, tensor_role
from appliance.checkpoint.facts import ModelFacts
from appliance.hardware.facts import MeasuredFacts
from appliance.plan.screen import head_tensors, screen_bytes, screen_forms
from appliance.plan.types import EnginePlan, WeightPlan

_MANY_ROWS = 32  # of a product; with fewer its kernels are others, and the weight's bytes hold them up
PROMPT = 512  # tokens of the request that an estimate is about, unless told


@dataclass(frozen=True, slots=True)
class Workload:
    """So many streams at once, each with a prompt and an answer of so many tokens."""

    streams: int = 1
    prompt: int = PROMPT
    answer: int = 128

    @property
    def context(self) -> int:
        """Cached tokens of a stream in the middle of its answer."""
        return self.prompt + self.answer // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Floors of time, and so the most of throughput. Of one workload."""

    workload: Workload
    prefill_tokens_per_s: float  # of one prompt
    ttft_s: float  # of a prompt that comes alone
    itl_s: float  # with all streams in the step
    output_tokens_per_s: float  # of all streams together, while all decode
    decode_bound: str  # "memory", or the arithmetic that holds most of a decode step up

    @property
    def decode_tokens_per_s(self) -> float:
        """Of one stream."""
        return 1 / self.itl_s

    @property
    def answer_tokens_per_s(self) -> float:
        """Of all streams over whole requests, prompts included: prompts are computed once each, decodes together."""
        work = self.workload
        return work.answer / (self.ttft_s + work.answer / work.streams * self.itl_s)


@dataclass(frozen=True, slots=True)
class _Machine:
    """Bytes and operations a second with the planned threads; a peak that was not measured bounds nothing."""

    bandwidth: float
    peaks: dict[str, float | None]
    rates: dict[str, float]  # of the kernels themselves on many rows, by layout and "attention"

    def seconds(self, num_bytes: float, operations: float, unit: str, kernel: str = "") -> tuple[float, str]:
        """`kernel`: whose rate holds in place of the peak of `unit`, where it was measured."""
        reading, peak = num_bytes / self.bandwidth, self.rates.get(kernel, self.peaks[unit])
        computing = operations / peak if peak else 0.0
        return (reading, "memory") if reading >= computing else (computing, unit)


@dataclass(frozen=True, slots=True)
class _Matrices:
    """Weights of one form: their bytes in memory, and their elements."""

    num_bytes: float
    elements: int
    unit: str
    kernel: str  # whose rate was measured; "" where activations are not what was measured
    is_head: bool = False  # meets sampled rows only


def estimate(plan: EnginePlan, model: ModelFacts, measured: MeasuredFacts, workload: Workload) -> Estimate | None:
    """None for what the formulas do not cover: experts, and devices that are not CPUs."""
    if model.geometry.num_experts or plan.device != "cpu":
        return None
    machine, matrices = _machine(plan, measured), list(_matrices(plan, model, num_sampled=1))
    decoded = list(_matrices(plan, model, num_sampled=workload.streams))
    decode_s, bound = _step(plan, model, machine, decoded, workload.streams, decodes=True, length=workload.context)
    prefill_s = sum(
        _step(plan, model, machine, matrices, size, decodes=False, length=end)[0]
        for size, end in _chunks(workload.prompt, plan.scheduler.max_num_batched_tokens)
    )
    return Estimate(
        workload=workload,
        prefill_tokens_per_s=workload.prompt / prefill_s,
        ttft_s=prefill_s,
        itl_s=decode_s,
        output_tokens_per_s=workload.streams / decode_s,
        decode_bound=bound,
    )


def _chunks(prompt: int, most: int) -> Iterator[tuple[int, int]]:
    """(tokens, tokens in the cache after them) of the steps of one prompt."""
    for start in range(0, prompt, most):
        end = min(start + most, prompt)
        yield end - start, end


def _step(
    plan: EnginePlan,
    model: ModelFacts,
    machine: _Machine,
    matrices: list[_Matrices],
    num_tokens: int,
    *,
    decodes: bool,
    length: int,
) -> tuple[float, str]:
    """(seconds, what bounds most of them) of a step: a token of each of many sequences, or many of one."""
    parts = []
    for each in matrices:
        rows = num_tokens if decodes or not each.is_head else 1
        kernel = each.kernel if rows >= _MANY_ROWS else ""
        parts.append(machine.seconds(each.num_bytes, 2 * each.elements * rows, each.unit, kernel))
    heads, dim = model.geometry.num_heads, model.geometry.head_dim
    for group in plan.memory[0].kv_groups:
        seen = length if group.window is None else min(length, group.window)
        keys = num_tokens * seen if decodes else seen  # that are read
        visits = keys if decodes else num_tokens * (2 * seen - min(num_tokens, seen)) // 2
        operations = 4 * heads * dim * group.num_layers * visits
        kernel = "" if decodes else "attention"
        parts.append(machine.seconds(keys * group.bytes_per_token, operations, "f32", kernel))
    by_bound: dict[str, float] = {}
    for seconds, bound in parts:
        by_bound[bound] = by_bound.get(bound, 0.0) + seconds
    return sum(by_bound.values()), max(by_bound, key=lambda bound: by_bound[bound])


def _machine(plan: EnginePlan, measured: MeasuredFacts) -> _Machine:
    """Figures of as many cores as there are threads: the lesser of the machine's and that many times one core's."""
    threads = plan.kernels.num_threads

    def share(every: float | None, one: float | None) -> float | None:
        return every if every is None or one is None else min(every, threads * one)

    bandwidth = share(measured.read_bandwidth, measured.one_core_read_bandwidth)
    assert bandwidth is not None, "read_bandwidth is always measured"
    return _Machine(
        bandwidth,
        {
            "f32": share(measured.f32_peak, measured.one_core_f32_peak),
            "bf16": share(measured.bf16_peak, measured.one_core_bf16_peak),
            "int8": share(measured.int8_peak, measured.one_core_int8_peak),
        },
        {
            name: share(rate, measured.one_core_kernel_rates.get(name)) or rate
            for name, rate in measured.kernel_rates.items()
        },
    )


def _matrices(plan: EnginePlan, model: ModelFacts, num_sampled: int) -> Iterator[_Matrices]:
    """Of a table of embeddings only what serves as the output head is read whole; screened, its copy is.
    num_sampled: rows of logits."""
    used = [tensor for tensor in model.tensors if len(tensor.shape) > 1 and not is_unused(tensor.name)]
    heads = head_tensors(model)
    for form in plan.precision.weights:
        if form.role == "other":
            continue
        own = [each for each in used if each.storage == form.storage and tensor_role(each.name, 2) == form.role]
        every = sum(prod(tensor.shape) for tensor in own)
        read = own if form.role == "linear" else [tensor for tensor in own if tensor in heads]
        elements = sum(prod(tensor.shape) for tensor in read)
        if not elements:
            continue
        serves_as_head = form.role == "embedding"
        is_dense = form.layout not in INTEGER_LAYOUTS
        if serves_as_head and plan.kernels.screen_logits and (is_dense or num_sampled <= SIX_BIT_SCREEN_ROWS):
            forms = [form for form in screen_forms(read, plan.precision) if form]
            yield _Matrices(screen_bytes(read, forms, panel=1), elements, "int8", forms[0].layout, is_head=True)
            continue
        unit = _unit(form, plan)
        kernel = form.layout if unit == "int8" or form.layout not in INTEGER_LAYOUTS else ""
        yield _Matrices(form.planned_bytes * elements / every, elements, unit, kernel, serves_as_head)


def _unit(form: WeightPlan, plan: EnginePlan) -> str:
    if form.layout in INTEGER_LAYOUTS:
        return "int8" if plan.precision.quantize_activations else "f32"
    return "f32" if form.layout == "f32" else "bf16"
