"""The oracle: a slow and simple interpreter of step programs in plain torch."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from appliance.kernels.errors import StepError
from appliance.kernels.execution import Execution
from appliance.kernels.expert_tables import ExpertTable, tables_of
from appliance.kernels.host import check_host
from appliance.kernels.host_staged import HostStaged
from appliance.kernels.interface import StepInputs, WeightChange
from appliance.kernels.layout import ROUNDED_INPUT_LAYOUTS, CanonicalWeight
from appliance.kernels.lockstep import RowsOfReplicas
from appliance.kernels.logits import HostLogits, Logits
from appliance.kernels.packed_cache import PackedCache
from appliance.kernels.ranks import Exchange, Ranks
from appliance.kernels.reference.attention import LayerCache
from appliance.kernels.reference.caches import kv_caches
from appliance.kernels.reference.moving import TensorMover
from appliance.kernels.reference.operators import RUN
from appliance.kernels.reference.sampler import ReferenceSampler
from appliance.kernels.reference.states import StateSlots, state_slots
from appliance.kernels.reference.step import Step
from appliance.kernels.reference.weights import dequantize
from appliance.kernels.sampling import SampledBatch, SamplingBatch
from appliance.program.operators import StepProgram
from appliance.program.roofline import program_work
from appliance.program.routing import SpreadExperts
from appliance.program.slots import Extent, Slot, Span
from appliance.program.spreading import SpreadMemory
from appliance.program.work import Forms, OperatorWork, WeightSize

_SLOT_DTYPES = {"f32": torch.float32, "bf16": torch.float32, "f16": torch.float32, "int32": torch.int32}


class ReferenceExecutable:
    """Runs a program operator by operator. Slots are allocated for the largest step."""

    def __init__(
        self,
        program: StepProgram,
        weights: Mapping[str, CanonicalWeight],
        execution: Execution,
        adapted: StepProgram | None = None,
    ) -> None:
        limits, numerics = execution.limits, execution.numerics
        self._program = program
        self._adapted = adapted
        self._adapters: dict[int, Mapping[str, WeightChange]] = {}  # by slot
        self._seconds: np.ndarray | None = None
        self._rows: dict[Extent, int] = {}  # of the last step
        self._sampled = np.zeros(0, np.int32)  # token ids of the last `sample`
        self._weights: dict[str, torch.Tensor] = {}
        self._activation_groups: dict[str, int] = {}
        for name, weight in weights.items():
            self._weights[name] = dequantize(weight)
            if numerics.quantize_activations and weight.layout in ROUNDED_INPUT_LAYOUTS:
                self._activation_groups[name] = weight.group_size or weight.in_features
        rows = {Extent.TOKENS: limits.max_num_batched_tokens, Extent.SAMPLED: limits.max_num_sampled}
        self._buffers = _buffers(program, rows)
        self._exchange = None
        if execution.ranks is not None:
            assert isinstance(execution.ranks, Ranks), "ranks of this set share memory"
            widest = max((slot.width for slot in program.slots), default=0)
            self._exchange = Exchange(execution.ranks, max(rows.values()), widest)
        self._lockstep, spread = execution.lockstep, SpreadMemory.of(program, rows)
        self._spread = RowsOfReplicas(self._lockstep, spread) if self._lockstep and spread.size_bytes else None
        self._tables = tables_of([program])
        self._lanes, self._caches, self._groups = kv_caches(program, execution)
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
        if inputs.adapters is not None and self._adapted is None:
            raise StepError("the program was bound without places for adapters")
        if inputs.embeds is not None:
            inputs.embeds.check(len(inputs.token_ids), self._program.embeds_width)
        step = _TorchStep(
            self._buffers,
            self._weights,
            self._activation_groups,
            self._caches,
            self._groups,
            inputs,
            self._states,
            self._adapters,
            self._exchange,
            self._tables,
            self._spread,
        )
        self._rows = {Extent.TOKENS: len(inputs.token_ids), Extent.SAMPLED: len(inputs.sampled_rows)}
        given = self._program.given
        if (given is None) != (inputs.given is None):
            raise StepError("a step is given states exactly if the program reads some")
        if given is not None and inputs.given is not None:
            step.slot(given)[:] = torch.from_numpy(np.ascontiguousarray(inputs.given))
        program = self._program if inputs.adapters is None or self._adapted is None else self._adapted
        if self._lockstep is not None and self._spread is not None:
            self._lockstep.promise()
            self._spread.begin(self._rows)
        is_idle = self._spread is not None and not len(inputs.token_ids)
        for index, op in enumerate(program.operators):
            if is_idle and not isinstance(op, SpreadExperts) and not hasattr(op, "state"):
                continue  # the others' rows and the copies of states are all that there is to do
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

    def kept(self) -> np.ndarray:
        slot = self._program.kept
        assert slot is not None, "the program keeps nothing"
        found: np.ndarray = self._buffers[slot.index][: self._rows[slot.extent]].numpy()
        return found

    def stage_weights(self, weights: Mapping[str, CanonicalWeight]) -> HostStaged:
        return HostStaged(weights, self._put_weights)

    def _put_weights(self, weights: Mapping[str, CanonicalWeight]) -> None:
        self._weights |= {name: dequantize(weight) for name, weight in weights.items()}

    def put_adapter(self, slot: int, changes: Mapping[str, WeightChange]) -> None:
        self._adapters[slot] = dict(changes)

    def drop_adapter(self, slot: int) -> None:
        self._adapters.pop(slot, None)

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

    def mover(self) -> TensorMover:
        return TensorMover(self._lanes, self._states)

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
            **({} if self._spread is None else {"spread_rows": self._spread.share_bytes}),
            "workspace": 0,
        }

    def close(self) -> None:
        self._weights, self._buffers, self._lanes, self._caches, self._states = {}, {}, [], [], []


def _buffers(program: StepProgram, rows: Mapping[Extent, int]) -> dict[int, torch.Tensor]:
    """Allocates the slots; those that are columns of others are views."""
    found = {
        slot.index: torch.zeros(rows[slot.extent], slot.width, dtype=_SLOT_DTYPES[slot.dtype])
        for slot in program.slots
        if slot.base is None
    }
    views = [slot for slot in program.slots if slot.base is not None]
    return found | {slot.index: found[slot.buffer.index][:, slot.start : slot.start + slot.width] for slot in views}


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
        adapters: Mapping[int, Mapping[str, WeightChange]],
        exchange: Exchange | None,
        tables: Mapping[int, ExpertTable],
        spread: RowsOfReplicas | None,
    ) -> None:
        self.exchange, self.tables, self.spread = exchange, tables, spread
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
        self.adapters = adapters
        self.step_adapters = inputs.adapters
        if inputs.states is not None:
            self.pieces = inputs.states
        self.sampled_rows = torch.from_numpy(inputs.sampled_rows).long()
        types = np.zeros_like(inputs.token_ids) if inputs.token_types is None else inputs.token_types
        self.token_types = torch.from_numpy(types).long()
        given = inputs.embeds
        self.embeds = None if given is None else (torch.from_numpy(given.rows), torch.from_numpy(given.row_of).long())

    def slot(self, slot: Slot) -> torch.Tensor:
        return self._buffers[slot.index][: self._rows[slot.extent]]

    def span(self, span: Span) -> torch.Tensor:
        return self.slot(span.slot)[:, span.start : span.start + span.width]


class ReferenceKernelSet:
    name = "reference"

    def bind(
        self,
        program: StepProgram,
        weights: Mapping[str, CanonicalWeight],
        execution: Execution,
        cache: PackedCache | None = None,
        adapted: StepProgram | None = None,
    ) -> ReferenceExecutable:
        """Binds a program. It packs nothing and ignores `cache`. Raises BindError for programs not for the host."""
        check_host(self.name, program, execution.placement)
        return ReferenceExecutable(program, weights, execution, adapted)


def load(name: str) -> ReferenceKernelSet:
    """Returns the one set of this module."""
    return ReferenceKernelSet()
