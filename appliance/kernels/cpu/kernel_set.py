"""The native CPU kernel sets: a program becomes C structs once, and a step is one call."""

import contextlib
import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from appliance.kernels import operators as ops
from appliance.kernels.arena import plan_arena
from appliance.kernels.cpu import abi
from appliance.kernels.cpu.fusion import gates_of_linears, inputs_of_linears
from appliance.kernels.cpu.library import Library, load_level
from appliance.kernels.cpu.memory import MappedMemory, has_gaps, row_stride
from appliance.kernels.cpu.records import encode, matrix_names
from appliance.kernels.cpu.sampler import NativeSampler
from appliance.kernels.cpu.screen import create_screen
from appliance.kernels.cpu.weights import BoundWeights
from appliance.kernels.errors import BindError, StepError
from appliance.kernels.interface import ExecutionLimits, KvCacheShape, PastTokens, StepInputs
from appliance.kernels.layout import CanonicalWeight
from appliance.kernels.packed_cache import PackedCache
from appliance.kernels.sampling import SampledBatch, SamplingBatch
from appliance.kernels.work import OperatorWork, program_work


class CpuKernelSet:
    def __init__(self, level: str, library: Library | None = None) -> None:
        """Raises KernelSetError when the level is not built or not for this processor."""
        self.name = f"cpu-{level}"
        self._library = library or load_level(level)

    def bind(
        self,
        program: ops.StepProgram,
        weights: Mapping[str, CanonicalWeight],
        kv_shapes: Sequence[KvCacheShape],
        limits: ExecutionLimits,
        cache: PackedCache | None = None,
    ) -> "CpuExecutable":
        """Raises BindError where sizes do not fit together."""
        with contextlib.ExitStack() as resources:
            executable = CpuExecutable(self._library, resources, program, weights, kv_shapes, limits, cache)
            executable.own(resources.pop_all())
            return executable


class CpuExecutable:
    def __init__(
        self,
        library: Library,
        resources: contextlib.ExitStack,
        program: ops.StepProgram,
        weights: Mapping[str, CanonicalWeight],
        kv_shapes: Sequence[KvCacheShape],
        limits: ExecutionLimits,
        cache: PackedCache | None,
    ) -> None:
        """Allocates into `resources`, which the caller closes when this raises."""
        self._library = library
        self._run: Callable[..., int] = library.functions.appl_program_run
        self._limits = limits
        self._operators = program
        self._operator_seconds: np.ndarray | None = None
        self._pool = create_pool(library, resources, limits.num_threads)
        self._sampler = NativeSampler(library, self._pool)
        self._weights = BoundWeights(library, self._pool, resources, matrix_names(program))
        self._weights.load(weights, program, limits.num_threads, cache)
        screens = limits.screen_logits
        self._screen = create_screen(library, self._pool, resources, program, self._weights) if screens else None
        rows = {ops.Extent.TOKENS: limits.max_num_batched_tokens, ops.Extent.SAMPLED: limits.max_num_sampled}
        arena = plan_arena(program, {slot.index: 4 * slot.width * rows[slot.extent] for slot in program.slots})
        self._arena = MappedMemory(arena.size_bytes)
        self._offsets = arena.offsets
        self._native_limits = _native_limits(limits)
        self._kv_cache, layers = self._allocate_cache(kv_shapes)
        self._program = self._create_program(program, layers, resources)
        shape = (limits.max_num_sampled, program.logits.width)
        self._logits = self._arena.floats(arena.offsets[program.logits.index], shape[0] * shape[1]).reshape(shape)
        self._step = abi.Step()
        self._step_reference = ctypes.byref(self._step)

    def own(self, resources: contextlib.ExitStack) -> None:
        """Takes over what was allocated; it is freed by `close`, or with this object."""
        self._finalizer = weakref.finalize(self, resources.close)

    def slot(self, slot: ops.Slot) -> int:
        return self._arena.address + self._offsets[slot.index]

    def matrix(self, name: str) -> int:
        return self._weights.matrix(name)

    def vector(self, name: str, size: int) -> int:
        return self._weights.vector(name, size)

    def table(self, name: str, columns: int) -> np.ndarray:
        return self._weights.table(name, columns)

    def run(self, inputs: StepInputs) -> np.ndarray:
        """Raises StepError where an input is out of bounds; nothing has run then."""
        step = self._step
        step.num_tokens = inputs.token_ids.shape[0]
        step.num_seqs = inputs.seq_lens.shape[0]
        step.num_sampled = inputs.sampled_rows.shape[0]
        step.block_table_stride = row_stride(inputs.block_tables) if step.num_seqs else 0
        _check_step(inputs)
        step.token_ids = inputs.token_ids.ctypes.data
        step.positions = inputs.positions.ctypes.data
        step.slot_mapping = inputs.slot_mapping.ctypes.data
        step.query_start = inputs.query_start.ctypes.data
        step.seq_lens = inputs.seq_lens.ctypes.data
        step.block_tables = inputs.block_tables.ctypes.data
        step.sampled_rows = inputs.sampled_rows.ctypes.data
        step.num_largest = None if inputs.num_largest is None else inputs.num_largest.ctypes.data
        _put_past(step, inputs.past)
        if self._run(self._program, self._step_reference) != 0:
            raise StepError(self._library.last_error())
        return self._logits[: inputs.sampled_rows.shape[0]]

    def sample(self, logits: np.ndarray, batch: SamplingBatch) -> SampledBatch:
        return self._sampler.sample(logits, batch)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Raises StepError for a block that is not there."""
        array = np.array(pairs, np.int32).reshape(-1, 2)
        if self._library.functions.appl_program_copy_blocks(self._program, array.ctypes.data, len(array)) != 0:
            raise StepError(self._library.last_error())

    def time_operators(self, seconds: np.ndarray | None) -> None:
        self._operator_seconds = seconds  # kept alive: the program writes to it
        address = None if seconds is None else seconds.ctypes.data
        self._library.functions.appl_program_time_operators(self._program, address)

    def operator_work(self) -> tuple[OperatorWork, ...]:
        size_of = self._library.functions.appl_weight_bytes
        return program_work(
            self._operators,
            lambda name: int(size_of(self.matrix(name))),
            self._limits.kv_dtype,
            int8_inputs=self._limits.quantize_activations,
            screen_bytes=0 if self._screen is None else self._screen.size_bytes,
        )

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        screen = {} if self._screen is None else {"logit_screen": self._screen.size_bytes}
        return {
            "weights": self._weights.size_bytes,
            **screen,
            "kv_cache": self._kv_cache.size_bytes,
            "activations": self._arena.size_bytes,
            "workspace": int(self._library.functions.appl_program_workspace_bytes(self._program)),
        }

    def close(self) -> None:
        self._finalizer()
        self._run = _closed

    def _allocate_cache(self, kv_shapes: Sequence[KvCacheShape]) -> tuple[MappedMemory, "ctypes.Array[abi.KvLayer]"]:
        size_of = self._library.functions.appl_kv_bytes
        sizes = [size_of(self._native_limits, shape.num_kv_heads, shape.head_dim) for shape in kv_shapes]
        memory = MappedMemory(2 * sum(sizes))
        layers = (abi.KvLayer * len(kv_shapes))()
        address = memory.address
        for layer, shape, size in zip(layers, kv_shapes, sizes, strict=True):
            layer.keys, layer.values = address, address + size
            layer.num_kv_heads, layer.head_dim = shape.num_kv_heads, shape.head_dim
            address += 2 * size
        return memory, layers

    def _create_program(
        self, program: ops.StepProgram, layers: "ctypes.Array[abi.KvLayer]", resources: contextlib.ExitStack
    ) -> ctypes.c_void_p:
        records = (abi.Operator * len(program.operators))(*(encode(op, self) for op in program.operators))
        for position in gates_of_linears(program):
            records[position].arguments.gated.from_linear = True
        for position in inputs_of_linears(program):
            is_gated = isinstance(program.operators[position], ops.GatedActivation)
            arguments = records[position].arguments
            (arguments.gated if is_gated else arguments.norm).for_linear = True
        if self._screen is not None:
            records[-1].arguments.linear.screen = self._screen.handle
        handle = ctypes.c_void_p()
        functions = self._library.functions
        status = functions.appl_program_create(
            self._pool, records, len(records), layers, len(layers), self._native_limits, ctypes.byref(handle)
        )
        self._library.check(status, "the program cannot be bound")
        resources.callback(functions.appl_program_destroy, handle)
        return handle


def create_pool(library: Library, resources: contextlib.ExitStack, num_threads: int) -> ctypes.c_void_p:
    pool = ctypes.c_void_p()
    library.check(library.functions.appl_pool_create(num_threads, ctypes.byref(pool)), "the thread pool")
    resources.callback(library.functions.appl_pool_destroy, pool)
    return pool


def _native_limits(limits: ExecutionLimits) -> abi.Limits:
    if limits.kv_dtype not in ("f32", "f16", "bf16"):
        raise BindError(f"kv_dtype is {limits.kv_dtype!r}", hint="the CPU sets keep a cache of f32, f16 or bf16")
    return abi.Limits(
        max_tokens=limits.max_num_batched_tokens,
        max_seqs=limits.max_num_seqs,
        max_sampled=limits.max_num_sampled,
        max_model_len=limits.max_model_len,
        block_size=limits.block_size,
        num_blocks=limits.num_blocks,
        kv_layout=abi.LAYOUTS[limits.kv_dtype],
        quantize_activations=limits.quantize_activations,
    )


def _put_past(step: abi.Step, past: PastTokens | None) -> None:
    if past is None:
        step.num_past = None
        return
    step.past_rows, step.past_stride = past.table.shape
    step.past_table = past.table.ctypes.data
    step.past_row = past.row.ctypes.data
    step.num_past = past.count.ctypes.data


def _check_step(inputs: StepInputs) -> None:
    """What the native check cannot see: element types, and arrays shorter than their counts."""
    tokens, sequences = inputs.token_ids.shape[0], inputs.seq_lens.shape[0]
    fits = (
        inputs.positions.shape[0] == tokens
        and inputs.slot_mapping.shape[0] == tokens
        and inputs.query_start.shape[0] == sequences + 1
        and inputs.block_tables.shape[0] == sequences
        and (inputs.num_largest is None or inputs.num_largest.shape == inputs.sampled_rows.shape)
    )
    if not fits:
        raise StepError("the arrays of a step differ in length")
    for name in abi.STEP_ARRAYS:
        _check_array(name, getattr(inputs, name))
    if inputs.num_largest is not None:
        _check_array("num_largest", inputs.num_largest)
    if inputs.past is not None:
        _check_past(inputs.past, inputs.sampled_rows.shape)


def _check_past(past: PastTokens, shape: tuple[int, ...]) -> None:
    if (
        past.table.ndim != 2
        or not past.table.flags.c_contiguous
        or past.row.shape != shape
        or past.count.shape != shape
    ):
        raise StepError("past tokens are no table, or their arrays differ in length")
    for name in ("table", "row", "count"):
        _check_array(f"past.{name}", getattr(past, name))


def _check_array(name: str, array: np.ndarray) -> None:
    if array.dtype != np.int32 or has_gaps(array):
        raise StepError(f"{name} is not an array of int32 without gaps")


def _closed(*_: object) -> int:
    raise StepError("the executable was closed")
