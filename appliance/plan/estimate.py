"""What a plan can reach at best on a measured machine. Pure: the plan, its program and measured figures.

Each operator costs the longer of reading its bytes and computing (program/work.py), with many rows at the rate that its
kernel was measured to reach, with few at the peak of the arithmetic; all follow one another (Williams et al. 2009,
"Roofline"). What is left out (norms, sampling, the way to the client, other processes) only makes it slower, so `bench`
says how much is reached.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec

from appliance.catalog.kernel_sets import KERNEL_SETS
from appliance.hardware.facts import MeasuredFacts
from appliance.hardware.speed import DeviceSpeed, Speed
from appliance.plan.estimate_device import DeviceSteps
from appliance.plan.program import PlannedProgram
from appliance.plan.screen import head_screen
from appliance.plan.types import EnginePlan
from appliance.program.ranks import Gather, Meet
from appliance.program.roofline import program_work
from appliance.program.work import ChunkReach, Forms, OperatorWork, Reach, StepCounts, reaches_of

_MANY_ROWS = 32  # of a product; with fewer its kernels are others, and the weight's bytes hold them up
PROMPT = 512  # tokens of the estimated request, unless the caller gives a number


class Workload(msgspec.Struct, frozen=True):
    """A number of streams at once, each with a prompt and an answer of a fixed number of tokens."""

    streams: int = 1
    prompt: int = PROMPT
    answer: int = 128

    @property
    def context(self) -> int:
        """Cached tokens of a stream in the middle of its answer."""
        return self.prompt + self.answer // 2


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Floors of time, and so the most of throughput. Of one workload."""

    workload: Workload
    prefill_tokens_per_s: float  # of one prompt
    ttft_s: float  # of a prompt that comes alone
    itl_s: float  # with all streams in the step
    output_tokens_per_s: float  # of all streams together, while all decode
    decode_bound: str  # what holds most of a decode step up: "memory", the arithmetic, "ranks" (meetings) or "link"

    @property
    def decode_tokens_per_s(self) -> float:
        """Returns the rate of one stream."""
        return 1 / self.itl_s

    @property
    def answer_tokens_per_s(self) -> float:
        """Returns the rate of all streams over whole requests: each prompt is computed by itself, decodes together."""
        work = self.workload
        return work.answer / (self.ttft_s + work.answer / work.streams * self.itl_s)


class _Machine(msgspec.Struct, frozen=True):
    """Bytes and operations a second with the planned threads; a peak that was not measured bounds nothing."""

    bandwidth: float
    peaks: dict[str, float | None]
    rates: dict[str, float]  # of the kernels themselves on many rows, by layout and "attention"

    def seconds(self, num_bytes: float, operations: float, unit: str, kernel: str = "") -> tuple[float, str]:
        """`kernel`: whose rate holds in place of the peak of `unit`, where it was measured."""
        reading, peak = num_bytes / self.bandwidth, self.rates.get(kernel, self.peaks[unit])
        computing = operations / peak if peak else 0.0
        return (reading, "memory") if reading >= computing else (computing, unit)


def estimate(plan: EnginePlan, program: PlannedProgram | None, speed: Speed, workload: Workload) -> Estimate | None:
    """Returns None for what the formulas do not cover: models without a program or that pool, and the sets on a CPU
    that are not native."""
    if program is None or program.is_outline or plan.model.pooling is not None:
        return None
    steps = _steps(plan, program, speed)
    if steps is None:
        return None
    step, works = steps
    decode_s, bound = step(_decodes(plan, works, workload), is_prompt=False)
    prefill_s = sum(
        step(_chunk(plan, works, size, end), is_prompt=True)[0]
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


class _Step(Protocol):
    def __call__(self, counts: StepCounts, *, is_prompt: bool) -> tuple[float, str]:
        """Returns the seconds of a step of one prompt, or of many sequences that decode, and what bounds most."""


def _steps(plan: EnginePlan, program: PlannedProgram, speed: Speed) -> tuple[_Step, Iterable[OperatorWork]] | None:
    """Returns what a step takes, and the work of the operators; None for a set that nothing is known of."""
    if isinstance(speed, DeviceSpeed):
        device = DeviceSteps(plan, program, speed)
        return device.step, device.works
    if plan.device != "cpu" or KERNEL_SETS[plan.kernels.kernel_set].uses_torch:
        return None
    works, waiting_s = _works(plan, program), _num_meetings(plan, program) * (speed.meeting_s or 0.0)
    return functools.partial(_step, _machine(plan, speed), works, waiting_s), works


def _num_meetings(plan: EnginePlan, program: PlannedProgram) -> int:
    """How often the ranks of a program wait for each other in a step."""
    shared = program if program.num_ranks > 1 else program.share(plan.parallel.tensor)
    return sum(isinstance(op, Gather | Meet) for op in shared.program.operators)


def _works(plan: EnginePlan, program: PlannedProgram) -> Counter[OperatorWork]:
    """The work of the operators, with how many have the same."""
    forms = Forms(program.size_of, plan.precision.kv_dtype, plan.precision.quantize_activations)
    screen = head_screen(program) if plan.kernels.screen_logits else None
    return Counter(program_work(program.program, forms, screen))


def _chunks(prompt: int, most: int) -> Iterator[tuple[int, int]]:
    """(tokens, tokens in the cache after them) of the steps of one prompt."""
    for start in range(0, prompt, most):
        end = min(start + most, prompt)
        yield end - start, end


def _decodes(plan: EnginePlan, works: Iterable[OperatorWork], workload: Workload) -> StepCounts:
    """A step with a token of each stream, in the middle of the answers."""
    streams = workload.streams
    seen = {reach: streams * decode_sight(reach, workload.context) for reach in reaches_of(works)}
    return StepCounts(
        streams, streams, keys=seen, visits=seen, few_logits=plan.kernels.screen_logits, sequences=streams
    )


def _chunk(plan: EnginePlan, works: Iterable[OperatorWork], size: int, end: int) -> StepCounts:
    """A step with `size` tokens of one prompt, `end` of which are in the cache after it."""
    sight = {reach: prompt_sight(reach, size, end) for reach in reaches_of(works)}
    keys, visits = ({reach: seen[i] for reach, seen in sight.items()} for i in range(2))
    return StepCounts(size, 1, keys=keys, visits=visits, few_logits=plan.kernels.screen_logits, sequences=1)


def decode_sight(reach: Reach, length: int) -> int:
    """Returns the keys that a query sees as the last of `length` tokens: of a long text the average over a chunk."""
    match reach:
        case None:
            return length
        case ChunkReach(size):
            return length if length <= size else (size + 1) // 2
        case window:
            return min(length, window)


def prompt_sight(reach: Reach, size: int, end: int) -> tuple[int, int]:
    """Returns (keys that are seen, pairs of a query and a key that it sees), of the queries at the last `size` of `end`
    positions."""
    first = end - size
    return end - _first_key(reach, first), _visits(reach, end) - _visits(reach, first)


def _first_key(reach: Reach, position: int) -> int:
    """The first key that a query at `position` sees."""
    match reach:
        case None:
            return 0
        case ChunkReach(size):
            return position // size * size
        case window:
            return max(0, position - window + 1)


def _visits(reach: Reach, end: int) -> int:
    """Pairs of a query and a key that it sees, for queries at positions 0 .. end - 1."""
    match reach:
        case None:
            return _triangle(end)
        case ChunkReach(size):
            return end // size * _triangle(size) + _triangle(end % size)
        case window:
            return _triangle(min(end, window)) + max(0, end - window) * window


def _triangle(count: int) -> int:
    """Pairs of `count` queries and the keys up to each."""
    return count * (count + 1) // 2


def _step(
    machine: _Machine, works: Counter[OperatorWork], waiting_s: float, counts: StepCounts, *, is_prompt: bool
) -> tuple[float, str]:
    """(seconds, what bounds most of them) of a step of one prompt, or of many sequences that decode. waiting_s: of
    ranks for each other."""
    by_bound = {"ranks": waiting_s}
    for each, times in works.items():
        work = counts.work_of(each)
        has_many_rows = is_prompt if work.visit_operations else counts.rows_of_weights(work) >= _MANY_ROWS
        kernel = work.kernel if has_many_rows else ""
        seconds, bound = machine.seconds(counts.bytes_of(work), counts.operations_of(work), work.unit, kernel)
        by_bound[bound] = by_bound.get(bound, 0.0) + times * seconds
    return sum(by_bound.values()), max(by_bound, key=lambda bound: by_bound[bound])


def _machine(plan: EnginePlan, measured: MeasuredFacts) -> _Machine:
    """Figures for as many cores as threads of all ranks of an engine, which divide the program among them: the smaller
    of the machine's, of which each replica has its part, and one core's times the number of threads."""
    threads, replicas = plan.kernels.num_threads * plan.parallel.tensor, plan.parallel.replicas

    def share(every: float | None, one: float | None) -> float | None:
        own = None if every is None else every / replicas
        return own if own is None or one is None else min(own, threads * one)

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
