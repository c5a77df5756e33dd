"""The time of a step on a GPU. Pure: the plan, its program, and figures of the card and of kernels (hardware.speed).

An operator is a launch. It reads and writes its slots, reads its weights or cached keys, and computes; what takes
longest counts, at the share of bandwidth or peak that kernels were measured to reach. Where activations are rounded to
FP8, products with FP8 weights of a scale a row compute at the rate of FP8, and many rows are read and written before.
"""

from collections import Counter
from typing import NamedTuple

import msgspec

from appliance.catalog.gpu_operators import FEW_ROWS
from appliance.hardware.speed import DeviceSpeed
from appliance.plan.offload import LINK_BYTES_PER_S, layer_bytes
from appliance.plan.program import PlannedProgram
from appliance.plan.sizes import ELEMENT_BYTES
from appliance.plan.types import EnginePlan
from appliance.plan.weight_memory import num_elements
from appliance.program.attention import HeadLinear
from appliance.program.operators import Linear, Operator
from appliance.program.rounded_inputs import rounded_weights
from appliance.program.slots import Extent
from appliance.program.work import Forms, OperatorWork, StepCounts

MANY_ROWS = 512  # of a product; with fewer the library's tiles do not fill the card
PACKED_ROWS = 32  # of a product with codes by a kernel of ours; with more they are made floats first


class _Launch(NamedTuple):
    """An operator: its work, the bytes of a token's and of a sampled row's slots, and the form of its weights.

    rounded_columns: of inputs that are rounded to FP8 for it; 0 where its products are of floats.
    """

    work: OperatorWork
    token_bytes: int
    sampled_bytes: int
    is_coded: bool
    rounded_columns: int = 0


class DeviceSteps:
    """The steps of a plan on one card."""

    def __init__(self, plan: EnginePlan, program: PlannedProgram, speed: DeviceSpeed) -> None:
        self._speed, self._element = speed, ELEMENT_BYTES[plan.precision.activations]
        self._peak = speed.peaks.get("f32" if plan.precision.activations == "f32" else "bf16")
        self._float8_peak = speed.peaks.get("f8")
        rounds = plan.precision.quantize_activations and self._float8_peak is not None
        self._rounded = rounded_weights(program.program) if rounds else frozenset()
        forms = Forms(program.size_of, plan.precision.kv_dtype, int8_inputs=False)
        sizes = layer_bytes(program) if plan.kernels.streamed_layers else {}
        self._copying_s = sum(sizes[layer] for layer in plan.kernels.streamed_layers) / LINK_BYTES_PER_S
        self._launches = Counter(self._launch(op, program, forms) for op in program.program.operators)

    @property
    def works(self) -> list[OperatorWork]:
        return [launch.work for launch in self._launches]

    def step(self, counts: StepCounts, *, is_prompt: bool) -> tuple[float, str]:
        """Returns the seconds of a step, and what holds most of them up: "memory", "arithmetic", "launches",
        or "link": the copies of layers that are streamed.

        is_prompt: not needed here, where the number of rows says which kernel runs.
        """
        by_bound: dict[str, float] = {}
        for launch, times in self._launches.items():
            seconds, bound = self._seconds(launch, counts)
            launching = self._speed.shares.launch_s
            name = bound if seconds > launching else "launches"
            by_bound[name] = by_bound.get(name, 0.0) + times * (seconds + launching)
        seconds = sum(by_bound.values())
        if self._copying_s > seconds:  # the copies of streamed layers run beside all else
            return self._copying_s + self._speed.shares.step_s, "link"
        return seconds + self._speed.shares.step_s, max(by_bound, key=lambda name: by_bound[name])

    def _launch(self, op: Operator, program: PlannedProgram, forms: Forms) -> _Launch:
        slots = {slot.index: slot for slot in op.slots()}.values()
        sizes = {extent: sum(slot.width for slot in slots if slot.extent is extent) for extent in Extent}
        matrices = [name for name in op.named(op.matrices) if name in program.weights]
        is_coded = any(program.form(program.weights[name]).is_quantized for name in matrices)
        tokens, sampled = (self._element * sizes[extent] for extent in (Extent.TOKENS, Extent.SAMPLED))
        work, columns = op.work(forms), self._rounded_columns(op, program)
        if isinstance(op, HeadLinear) and op.weight in program.weights:  # kept in the activations' type
            size = num_elements(program.weights[op.weight]) * self._element
            return _Launch(msgspec.structs.replace(work, weight_bytes=size), tokens, sampled, is_coded=False)
        return _Launch(work, tokens, sampled, is_coded, columns)

    def _rounded_columns(self, op: Operator, program: PlannedProgram) -> int:
        """Returns the columns of a product's input, if they are rounded to FP8."""
        if not isinstance(op, Linear) or op.weight not in self._rounded or op.weight not in program.weights:
            return 0
        form = program.form(program.weights[op.weight])
        return op.x.width if form.layout == "f8" and form.group_size is None else 0

    def _seconds(self, launch: _Launch, counts: StepCounts) -> tuple[float, str]:
        """Returns the seconds beyond a launch, and what holds them up."""
        work, shares, bandwidth = launch.work, self._speed.shares, self._speed.bandwidth
        slots = launch.token_bytes * counts.tokens + launch.sampled_bytes * counts.sampled
        if work.visit_operations:
            reading = counts.bytes_of(work) / (shares.cached_keys * bandwidth)
            return self._longer(reading, self._computing(counts.operations_of(work), shares.prompt_attention))
        if not work.weight_bytes:
            return (slots + counts.bytes_of(work)) / bandwidth, "memory"
        rows = counts.rows_of_weights(work)
        share = shares.many_rows if rows > MANY_ROWS else shares.some_rows
        if launch.rounded_columns and rows > FEW_ROWS:
            return self._rounded_product(launch, counts, share)
        reading = counts.bytes_of(work) / ((shares.quantized if launch.is_coded else shares.few_rows) * bandwidth)
        if launch.is_coded and rows > PACKED_ROWS and not launch.rounded_columns:
            reading += 2 * work.row_operations / bandwidth  # two bytes of a number, for two operations, twice
        elif rows <= FEW_ROWS:
            share = 1.0  # the kernels of few rows wait for their weights
        return self._longer(reading, self._computing(counts.operations_of(work), share))

    def _rounded_product(self, launch: _Launch, counts: StepCounts, share: float) -> tuple[float, str]:
        """Returns the same of many rows of FP8: inputs are read and their codes written, and then multiplied."""
        work, bandwidth = launch.work, self._speed.bandwidth
        assert self._float8_peak is not None, "a peak that is not known rounds nothing"
        rounding = (self._element + 1) * launch.rounded_columns * counts.rows_of(work) / bandwidth
        reading = counts.bytes_of(work) / (self._speed.shares.few_rows * bandwidth)
        computing = counts.operations_of(work) / (share * self._float8_peak)
        seconds, bound = self._longer(reading, computing)
        return rounding + seconds, bound

    def _computing(self, operations: int, share: float) -> float:
        return operations / (share * self._peak) if self._peak else 0.0

    def _longer(self, reading: float, computing: float) -> tuple[float, str]:
        return (reading, "memory") if reading >= computing else (computing, "arithmetic")
