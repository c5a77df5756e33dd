"""The oracle: a slow and simple interpreter of step programs in plain torch."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from appliance.kernels.errors import StepError
from appliance.kernels.execution import Execution
from appliance.kernels.host import check_host
from appliance.kernels.interface import StepInputs
from appliance.kernels.layout import INTEGER_LAYOUTS, CanonicalWeight
from appliance.kernels.logits import HostLogits, Logits
from appliance.kernels.packed_cache import PackedCache
from appliance.kernels.reference.attention import LayerCache
from appliance.kernels.reference.operators import RUN, Step
from appliance.kernels.reference.sampler import ReferenceSampler
from appliance.kernels.reference.states import StateSlots, state_slots
from appliance.kernels.reference.weights import dequantize
from appliance.kernels.sampling import SampledBatch, SamplingBatch
from appliance.program.operators import StepProgram
from appliance.program.roofline import program_work
from appliance.program.slots import Extent, Slot, Span
from appliance.program.work import Forms, OperatorWork, WeightSize

_SLOT_DTYPES = {"f32": torch.float32, "bf16": torch.float32, "f16": torch.float32, "int32": torch.int32}
KV_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class ReferenceExecutable:
    """Runs a program operator by operator. Slots are allocated for the largest step."""

    def __init__(
        self,
        program: StepProgram,
        weights: Mapping[str, CanonicalWeight],
        execution: Execution,
    ) -> None:
        limits, numerics = execution.limits, execution.numerics
        self._program = program
        self._seconds: np.ndarray | None = None
        self._sampled = np.zeros(0, np.int32)  # token ids of the last `sample`
        self._weights: dict[str, torch.Tensor] = {}
        self._activation_groups: dict[str, int] = {}
        for name, weight in weights.items():
            self._weights[name] = dequantize(weight)
            if numerics.quantize_activations and weight.layout in INTEGER_LAYOUTS:
                self._activation_groups[name] = weight.group_size or weight.in_features
        rows = {Extent.TOKENS: limits.max_num_batched_tokens, Extent.SAMPLED: limits.max_num_sampled}
        self._buffers = {
            slot.index: torch.zeros(rows[slot.extent], slot.width, dtype=_SLOT_DTYPES[slot.dtype])
            for slot in program.slots
        }
        self._lanes, self._caches, self._groups = _caches(program, execution)
        self._states = state_slots(program.states, limits.num_states)

    @torch.inference_mode()
    def run(self, inputs: StepInputs) -> HostLogits:
        """Runs one step. If it `follows`, it uses its own sampled tokens, so that tests find a wrong `follows`.

        Raises StepError if it has pieces and the program has no states, or the other way round.
        """
        if (inputs.states is not None) != bool(self._program.states):
            raise StepError("a step has pieces exactly if the program has states")
        if inputs.follows:
            inputs = replace(inputs, token_ids=self._sampled)
        step = _TorchStep(
            self._buffers, self._weights, self._activation_groups, self._caches, self._groups, inputs, self._states
        )
        for index, op in enumerate(self._program.operators):
            started = time.perf_counter()
            RUN[type(op)](op, step)
            if self._seconds is not None:
                self._seconds[index] += time.perf_counter() - started
        return HostLogits(step.slot(self._program.logits).numpy())

    def sample(self, logits: Logits, batch: SamplingBatch) -> SampledBatch:
        assert isinstance(logits, HostLogits), "logits are those of this executable"
        result = ReferenceSampler().sample(logits, batch)
        self._sampled = result.token_ids
        return result

    def time_operators(self, seconds: np.ndarray | None) -> None:
        self._seconds = seconds

    def operator_work(self) -> tuple[OperatorWork, ...]:
        forms = Forms(lambda name: WeightSize(self._weights[name].nbytes, "f32"), "f32", int8_inputs=False)
        return program_work(self._program, forms)

    @torch.inference_mode()
    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, destination in pairs:
            for lane in self._lanes:
                lane[destination] = lane[source]

    @property
    def shared_keys(self) -> int:
        return 0

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        return {
            "weights": sum(weight.nbytes for weight in self._weights.values()),
            "kv_cache": sum(lane.nbytes for lane in self._lanes),
            **({"states": sum(slots.nbytes for slots in self._states)} if self._states else {}),
            "activations": sum(buffer.nbytes for buffer in self._buffers.values()),
            "workspace": 0,
        }

    def close(self) -> None:
        self._weights, self._buffers, self._lanes, self._caches, self._states = {}, {}, [], [], []


class _TorchStep(Step):
    def __init__(
        self,
        buffers: dict[int, torch.Tensor],
        weights: dict[str, torch.Tensor],
        activation_groups: dict[str, int],
        caches: list[LayerCache],
        groups: list[int],
        inputs: StepInputs,
        states: StateSlots,
    ) -> None:
        self._buffers = buffers
        self._rows = {Extent.TOKENS: len(inputs.token_ids), Extent.SAMPLED: len(inputs.sampled_rows)}
        self.weights = weights
        self.activation_groups = activation_groups
        self.caches = caches
        self.groups = groups
        self.token_ids = torch.from_numpy(inputs.token_ids).long()
        self.positions = torch.from_numpy(inputs.positions).long()
        self.slot_mapping = torch.from_numpy(inputs.slot_mapping)
        self.query_start = inputs.query_start.tolist()
        self.seq_lens = inputs.seq_lens.tolist()
        self.block_tables = torch.from_numpy(inputs.block_tables)
        self.states = states
        if inputs.states is not None:
            self.pieces = inputs.states
        self.sampled_rows = torch.from_numpy(inputs.sampled_rows).long()

    def slot(self, slot: Slot) -> torch.Tensor:
        return self._buffers[slot.index][: self._rows[slot.extent]]

    def span(self, span: Span) -> torch.Tensor:
        return self.slot(span.slot)[:, span.start : span.start + span.width]


def _caches(program: StepProgram, execution: Execution) -> tuple[list[torch.Tensor], list[LayerCache], list[int]]:
    """Returns the lanes of the blocks, first the keys [num_blocks, ...] of one and then its values; and for each cache
    its part of them, and its group."""
    limits, layout = execution.limits, program.kv_layout()
    dtype = KV_DTYPES[execution.numerics.kv_dtype]
    lanes: list[torch.Tensor] = []
    caches: dict[int, LayerCache] = {}
    for numbers in layout.lanes():
        shapes = [program.caches[number] for number in numbers]
        keys, values = (
            torch.zeros(limits.num_blocks, limits.block_size * width, dtype=dtype)
            for width in (
                max(shape.num_kv_heads * shape.key_dim for shape in shapes),
                max(shape.num_kv_heads * sum(shape.stored_dims[1:]) for shape in shapes),
            )
        )
        lanes += [keys, values]
        for number, shape in zip(numbers, shapes, strict=True):
            size = (limits.block_size, shape.num_kv_heads)
            own = _head(keys, *size, shape.key_dim)
            of_values = own[..., : shape.value_dim] if shape.values_in_keys else _head(values, *size, shape.value_dim)
            caches[number] = LayerCache(own, of_values)
    groups = {cache: number for number, group in enumerate(layout.groups) for cache in group.caches}
    return lanes, [caches[number] for number in sorted(caches)], [groups[number] for number in sorted(groups)]


def _head(lane: torch.Tensor, block_size: int, num_heads: int, width: int) -> torch.Tensor:
    """Returns the first numbers of each block of a lane as [num_blocks, block_size, G, d]."""
    return lane[:, : block_size * num_heads * width].view(-1, block_size, num_heads, width)


class ReferenceKernelSet:
    name = "reference"

    def bind(
        self,
        program: StepProgram,
        weights: Mapping[str, CanonicalWeight],
        execution: Execution,
        cache: PackedCache | None = None,
    ) -> ReferenceExecutable:
        """Binds a program. It packs nothing and ignores `cache`. Raises BindError for programs not for the host."""
        check_host(self.name, program, execution.placement)
        return ReferenceExecutable(program, weights, execution)


def load(name: str) -> ReferenceKernelSet:
    """Returns the one set of this module."""
    return ReferenceKernelSet()
