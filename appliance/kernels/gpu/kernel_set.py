"""The GPU kernel sets: one executor of step programs on torch, for CUDA, for ROCm, and for torch's CPU device."""

import functools
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from appliance.catalog.gpu_operators import FEW_ROWS
from appliance.kernels.errors import BindError, KernelSetError, StepError
from appliance.kernels.execution import Execution
from appliance.kernels.gpu.activations import place_activations
from appliance.kernels.gpu.adapters import DeviceAdapters
from appliance.kernels.gpu.caches import CacheMemory
from appliance.kernels.gpu.calls import calls_of
from appliance.kernels.gpu.capturing import can_capture, empty_step
from appliance.kernels.gpu.checks import StepBounds, vocabulary_of
from appliance.kernels.gpu.collectives import collectives_of
from appliance.kernels.gpu.device import DTYPES, Device, on_device
from appliance.kernels.gpu.device_sampler import DeviceSample, DeviceSampler
from appliance.kernels.gpu.expert_tables import device_tables
from appliance.kernels.gpu.failures import says_failures
from appliance.kernels.gpu.float8 import float8_or
from appliance.kernels.gpu.graphs import StepGraphs
from appliance.kernels.gpu.host_layers import HostLayers
from appliance.kernels.gpu.inputs import InputBuffer
from appliance.kernels.gpu.logits import DeviceLogits
from appliance.kernels.gpu.matrices import DenseMatrix, DeviceMatrix, load_matrix, load_vector
from appliance.kernels.gpu.parts import ON_TORCH, Parts, triton_parts
from appliance.kernels.gpu.program_graphs import ProgramGraphs
from appliance.kernels.gpu.sleeping import PutAway, refill, release, tensors_of
from appliance.kernels.gpu.step import BoundModel, DeviceStep
from appliance.kernels.gpu.weight_stream import WeightStream
from appliance.kernels.host_staged import HostStaged
from appliance.kernels.interface import GraphReport, StepInputs, WeightChange
from appliance.kernels.layout import CanonicalWeight
from appliance.kernels.logits import HostLogits, Logits
from appliance.kernels.packed_cache import PackedCache
from appliance.kernels.reference.moving import TensorMover
from appliance.kernels.reference.states import state_slots
from appliance.kernels.sampling import SampledBatch, SamplingBatch
from appliance.program.head_matrices import head_matrices
from appliance.program.operators import StepProgram
from appliance.program.roofline import program_work
from appliance.program.rounded_inputs import rounded_weights
from appliance.program.work import Forms, OperatorWork, WeightSize

_DEVICE_KINDS = {"torch": "cpu", "cuda": "cuda", "rocm": "rocm"}


class GpuExecutable:
    """Runs a program operator by operator. All memory but what torch needs inside an operator is allocated here."""

    def __init__(
        self,
        program: StepProgram,
        weights: Mapping[str, CanonicalWeight],
        execution: Execution,
        device: Device,
        adapted: StepProgram | None,
        parts: Parts = ON_TORCH,
    ) -> None:
        limits, numerics = execution.limits, execution.numerics
        dtype = self._dtype = DTYPES[numerics.activation_dtype]
        self._device, self._program, self._limits, self._kv_dtype = device, program, limits, numerics.kv_dtype
        self._seconds: np.ndarray | None = None
        self._kept: torch.Tensor | None = None
        self._ahead: tuple[int, DeviceLogits] | None = None  # the step that was started: its revision, and its logits
        matrices, vectors = program.matrices(), program.vectors()
        self._matrices: dict[str, DeviceMatrix] = {}
        self._vectors: dict[str, torch.Tensor] = {}
        self._packs, self._by_head = {False: parts.pack, True: float8_or(parts.pack)}, head_matrices(program)
        self._rounded = rounded_weights(program) if numerics.quantize_activations else frozenset()
        self._asleep: dict[str, PutAway] = {}  # "weights", "adapters", "caches"
        self._layers, stream = HostLayers(program, execution.placement.streamed_layers, device), WeightStream(device)
        for name in weights:  # in this order, in which they are read ahead
            if name in matrices:
                self._matrices[name] = self._layers.taken(name, self._loaded(name, weights, stream))
            elif name in vectors:
                self._vectors[name] = load_vector(weights[name], stream)
        self._layers.place(self._matrices)
        self._caches = CacheMemory.of(program, execution, device)
        with device.name:
            self._states = state_slots(program.states, limits.num_states)
        programs = [program] if adapted is None else [program, adapted]
        make = parts.make_kit
        self._kit = None if make is None else make(programs, execution, dtype, self._vectors, device)
        is_by_rows = numerics.batch_invariant and self._kit is None and not device.is_gpu
        own = functools.partial(calls_of, parts=parts, matrices=self._matrices, is_by_rows=is_by_rows)
        self._calls = self._layers.streamed(own(program))
        self._adapted_calls = [] if adapted is None else self._layers.streamed(own(adapted))
        tile_rows = () if self._kit is None else self._kit.tile_rows
        self._inputs = InputBuffer(
            limits,
            len(program.kv_layout().groups),
            device,
            tile_rows,
            has_states=bool(program.states),
            has_adapters=adapted is not None,
            all_in_tiles=numerics.batch_invariant,
        )
        places = limits.max_loras, numerics.lora_dtype, device
        self._adapters = None if adapted is None else DeviceAdapters(adapted, *places)
        sizes = vocabulary_of(program, self._matrices, self._vectors)
        self._bounds = StepBounds(program, limits, *sizes, has_adapters=adapted is not None)
        self._arena, buffers = place_activations(adapted or program, execution, dtype, device)
        memory = (self._caches.caches, self._states, self._adapters)
        fixed_rows = (FEW_ROWS if device.is_gpu else 1) if numerics.batch_invariant else 0
        self._collectives = collectives_of(adapted or program, execution, dtype, device)
        first, tables = (device, dtype, buffers, self._matrices, self._vectors), device_tables(program, device)
        self._bound = BoundModel(*first, *memory, self._kit, self._collectives, tables, fixed_rows)
        self._graphs = self._graphs_of(execution)
        self._sampler = self._sampler_of(limits.max_num_sampled)

    def _sampler_of(self, num_rows: int) -> DeviceSampler:
        draws = None if self._kit is None else self._kit.draws
        return DeviceSampler(num_rows, self._device, draws, self._graphs.memory)

    def _graphs_of(self, execution: Execution) -> ProgramGraphs:
        captures = functools.partial(can_capture, device=self._device, matrices=self._matrices, kit=self._kit)
        clock = time.monotonic if execution.ranks is None else _no_time
        rest = (self._bound, execution.graphs, execution.limits, captures, clock)
        plain = StepGraphs(self._calls, *rest)
        has_both = self._adapters is not None and plain.memory is not None
        return ProgramGraphs(plain, StepGraphs(self._adapted_calls, *rest, plain.memory) if has_both else None)

    def _loaded(self, name: str, weights: Mapping[str, CanonicalWeight], stream: WeightStream) -> DeviceMatrix:
        """Copies a matrix to the device in its planned form; one by head becomes numbers of the activations' type."""
        found = load_matrix(name, weights, stream, self._packs[name in self._rounded])
        return DenseMatrix(found.read(slice(None), self._dtype)) if name in self._by_head else found

    @property
    def early_rows(self) -> int:
        """A GPU computes the next step while the host commits this one. States of a step that began cannot be undone,
        and a CPU would compute nothing meanwhile."""
        return self._limits.max_num_seqs if self._device.is_gpu and not self._program.states else 0

    def start(self, inputs: StepInputs) -> None:
        """Gives a whole step to the device, and does not wait. Raises like `run`."""
        self._ahead = None
        logits = self._launch(inputs)
        self._ahead = (inputs.revision, logits)

    def cancel(self) -> None:
        """Forgets the step that was started. What it wrote lies in slots that a later step writes again."""
        self._ahead = None

    def run(self, inputs: StepInputs) -> DeviceLogits:
        """Gives a step to the device, unless it was started. Raises like StepBounds.check."""
        ahead, self._ahead = self._ahead, None
        return ahead[1] if ahead is not None and ahead[0] == inputs.revision else self._launch(inputs)

    @says_failures
    @on_device
    @torch.inference_mode()
    def _launch(self, inputs: StepInputs) -> DeviceLogits:
        self._bounds.check(inputs)
        graphs = None if self._seconds is not None else self._graphs_for(inputs)
        shape = None if graphs is None else graphs.shape_of(inputs)
        arrays = self._inputs.load(inputs, shape)
        own = arrays.unpadded()
        if inputs.follows:
            self._sampler.feed(own.token_ids)
        step = DeviceStep(self._bound, own)
        self._kept = None if self._program.kept is None else step.slot(self._program.kept)
        if self._program.given is not None and inputs.given is not None:
            step.slot(self._program.given).copy_(self._device.upload(inputs.given))
        with self._launches(is_decode=len(inputs.token_ids) == len(inputs.seq_lens)):
            if shape is None or graphs is None:
                self._run_operators(step)
            else:
                graphs.run(arrays)
        return DeviceLogits(step.slot(self._program.logits))

    def _graphs_for(self, inputs: StepInputs) -> StepGraphs | None:
        """Returns the graphs by which a step may run: none of them reads embeddings that a step is given."""
        if inputs.adapters is None or inputs.embeds is not None:
            return self._graphs.plain if inputs.embeds is None else None
        return self._graphs.adapted if self._own_adapters().can_capture(inputs.adapters.slots) else None

    @torch.inference_mode()
    def sleep(self, *, keep_weights: bool) -> None:
        self.cancel()
        self._kept = None
        self._device.wait()
        self._graphs.forget()
        adapters = () if self._adapters is None else self._adapters.tensors()
        caches = [*tensors_of((self._caches.lanes, self._caches.caches)), *self._states]
        self._asleep = {
            "caches": PutAway(caches, keep=False),
            "adapters": PutAway(adapters, keep=True),
            "weights": PutAway(tensors_of((self._matrices, self._vectors)), keep=keep_weights),
        }
        release(self._device)

    @says_failures
    @on_device
    @torch.inference_mode()
    def wake_weights(self, weights: Mapping[str, CanonicalWeight] | None) -> None:
        for part in ("adapters", "weights"):
            self._asleep[part].bring_back()
        self._refill({} if weights is None else weights)
        if self._adapters is not None:
            self._adapters.enter_all()  # maps may lie elsewhere now
        del self._asleep["adapters"], self._asleep["weights"]

    def stage_weights(self, weights: Mapping[str, CanonicalWeight]) -> HostStaged:
        return HostStaged(weights, self._put_weights)

    @says_failures
    @on_device
    @torch.inference_mode()
    def _put_weights(self, weights: Mapping[str, CanonicalWeight]) -> None:
        self.cancel()
        self._device.wait()
        self._refill(weights)

    def _refill(self, weights: Mapping[str, CanonicalWeight]) -> None:
        """Copies weights over those of their names, whose addresses stay."""
        stream = WeightStream(self._device)
        for name in weights:
            if name in self._matrices:
                loaded = self._loaded(name, weights, stream)
                if not self._layers.refill(name, loaded):
                    refill(tensors_of(self._matrices[name]), tensors_of(loaded))
            elif name in self._vectors:
                refill([self._vectors[name]], [load_vector(weights[name], stream)])
        self._layers.begin()

    @says_failures
    @torch.inference_mode()
    def wake_caches(self) -> None:
        self._asleep["caches"].bring_back()
        del self._asleep["caches"]

    def _launches(self, *, is_decode: bool) -> AbstractContextManager[None]:
        return nullcontext() if self._kit is None else self._kit.launches(is_decode=is_decode)

    def _run_operators(self, step: DeviceStep) -> None:
        """Runs operator by operator, and measures each where that was asked for."""
        calls = self._calls if step.arrays.host.adapters is None else self._adapted_calls
        for index, (run, op) in enumerate(calls):
            started = time.perf_counter()
            run(op, step)
            if self._seconds is not None:
                self._device.wait()
                self._seconds[index] += time.perf_counter() - started

    @property
    def graphs(self) -> GraphReport:
        return self._graphs.report

    @says_failures
    @on_device
    @torch.inference_mode()
    def capture_next(self) -> bool:
        found = self._graphs.next()
        if found is None:
            return False
        graphs, shape = found
        with self._launches(is_decode=shape.is_decode):
            graphs.run(self._inputs.load(empty_step(len(self._program.kv_layout().groups)), shape))
        return True

    @says_failures
    def kept(self) -> np.ndarray:
        """Copies what the last step kept to the host, and waits for it."""
        assert self._kept is not None, "the program keeps nothing"
        found: np.ndarray = self._kept.float().cpu().numpy()
        return found

    def sample(self, logits: Logits, batch: SamplingBatch) -> SampledBatch:
        return self.begin_sampling(logits, batch).result()

    @says_failures
    @on_device
    @torch.inference_mode()
    def begin_sampling(self, logits: Logits, batch: SamplingBatch) -> DeviceSample:
        if isinstance(logits, HostLogits):  # of a stage that another rank runs
            logits = DeviceLogits(self._device.upload(logits.values), is_in_place=False)
        assert isinstance(logits, DeviceLogits), "logits are those of this executable"
        return self._sampler.begin(logits.values, batch, is_in_place=logits.is_in_place)

    @says_failures
    @torch.inference_mode()
    def some(self, logits: Logits, rows: np.ndarray) -> DeviceLogits:
        assert isinstance(logits, DeviceLogits), "logits are those of this executable"
        return DeviceLogits(logits.values[self._device.upload(rows)], is_in_place=False)

    @says_failures
    @torch.inference_mode()
    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies blocks (source, destination). Raises StepError for a block number out of range."""
        self.cancel()  # a step that was started has read the blocks as they were
        blocks = np.asarray(pairs, np.int64).reshape(-1, 2)
        if ((blocks < 0) | (blocks >= self._limits.num_blocks)).any():
            raise StepError(f"blocks are 0 to {self._limits.num_blocks - 1}")
        for source, target in blocks:  # in order: a block may be copied on
            self._caches.copy(source, target)

    def mover(self) -> TensorMover:
        return TensorMover(self._caches.lanes, self._states)

    @says_failures
    def put_adapter(self, slot: int, changes: Mapping[str, WeightChange]) -> None:
        self._own_adapters().put(slot, changes)

    def drop_adapter(self, slot: int) -> None:
        self._own_adapters().drop(slot)

    def _own_adapters(self) -> DeviceAdapters:
        if self._adapters is None:
            raise BindError("the program was bound without places for adapters")
        return self._adapters

    def time_operators(self, seconds: np.ndarray | None) -> None:
        self._seconds = seconds

    def operator_work(self) -> tuple[OperatorWork, ...]:
        def size_of(name: str) -> WeightSize:
            return WeightSize(self._matrices[name].nbytes, "bf16")

        return program_work(self._program, Forms(size_of, self._kv_dtype, int8_inputs=False))

    @property
    def shared_keys(self) -> int:
        return 0

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        scratch = 0 if self._kit is None else self._kit.size_bytes
        scratch += 0 if self._collectives is None else self._collectives.size_bytes
        vectors = sum(vector.nbytes for vector in self._vectors.values())
        return {
            "weights": vectors + self._layers.resident_bytes(self._matrices),
            "kv_cache": self._caches.size_bytes,
            **({"states": sum(slots.nbytes for slots in self._states)} if self._states else {}),
            **({} if self._adapters is None else {"adapters": self._adapters.size_bytes}),
            "activations": self._arena.nbytes,
            "workspace": self._inputs.size_bytes + self._caches.spare_bytes + self._sampler.size_bytes + scratch,
        }

    def close(self) -> None:
        """Frees everything: nothing else refers to the memory."""
        self._device.wait()
        if self._collectives is not None:
            self._collectives.close()
        del self._matrices, self._layers, self._vectors, self._caches, self._states, self._inputs, self._adapters
        del self._arena, self._bound, self._sampler, self._kept, self._kit, self._ahead, self._graphs


def _no_time() -> float:
    """Stands still: ranks run and pad every step alike, so none of them decides by its own clock what it captures."""
    return 0.0


class GpuKernelSet:
    def __init__(self, name: str, with_triton: bool | None = None) -> None:
        """with_triton: whether Triton's kernels run what they can; None: on GPUs. Raises KernelSetError if there is no
        such device."""
        self.name = name
        self._with_triton = _DEVICE_KINDS[name] != "cpu" if with_triton is None else with_triton
        try:
            Device.named(_DEVICE_KINDS[name])
        except BindError as error:
            raise KernelSetError(str(error), hint="appliance doctor shows the devices") from error

    def bind(
        self,
        program: StepProgram,
        weights: Mapping[str, CanonicalWeight],
        execution: Execution,
        cache: PackedCache | None = None,
        adapted: StepProgram | None = None,
    ) -> GpuExecutable:
        """Binds a program. Weights lie on the device as they are planned, so nothing is packed and kept.

        Inputs of FP8 weights with a scale a row are rounded where the plan rounds activations, and no others.
        """
        kind = _DEVICE_KINDS[self.name]
        if execution.placement.device.partition(":")[0] != kind:
            raise BindError(f"kernel set {self.name} runs on {kind}, not on {execution.placement.device}")
        device = Device.named(execution.placement.device)
        device.claim(execution.placement.memory_bytes)
        if not device.is_gpu:
            torch.set_num_threads(execution.placement.num_threads)
        parts = triton_parts() if self._with_triton else ON_TORCH
        with device.current():
            return GpuExecutable(program, weights, execution, device, adapted, parts)


def load(name: str) -> GpuKernelSet:
    """Loads a set by its name. Raises KernelSetError if torch has no device for it."""
    return GpuKernelSet(name)
