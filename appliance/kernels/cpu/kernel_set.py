"""The native CPU kernel sets: a program becomes C structs once, and a step is one native call."""

import contextlib
import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from appliance.kernels.cpu import abi
from appliance.kernels.cpu.adapter_memory import AdapterMemory
from appliance.kernels.cpu.addresses import Addresses, SpreadPlace
from appliance.kernels.cpu.kv_memory import KvMemory
from appliance.kernels.cpu.library import Library, load_level
from appliance.kernels.cpu.locking import lock_memory
from appliance.kernels.cpu.memory import MappedMemory
from appliance.kernels.cpu.native_programs import NativePrograms, Places
from appliance.kernels.cpu.pinning import bind_workers, place_caller
from appliance.kernels.cpu.pools import create_pool
from appliance.kernels.cpu.sampler import NativeSampler
from appliance.kernels.cpu.screen import FEW_LOGITS
from appliance.kernels.cpu.sleeping import as_executable_error, release_all
from appliance.kernels.cpu.staged_weights import PackedBeside, StagedPack
from appliance.kernels.cpu.state_memory import StateMemory
from appliance.kernels.cpu.step import NativeStep
from appliance.kernels.cpu.weights import BoundWeights
from appliance.kernels.errors import BindError, ExecutableError, StepError
from appliance.kernels.execution import Execution, ExecutionLimits, Numerics
from appliance.kernels.expert_tables import ExpertTable, tables_of
from appliance.kernels.host import check_host
from appliance.kernels.interface import FewLogits, StepInputs, WeightChange
from appliance.kernels.layout import CanonicalWeight
from appliance.kernels.logits import HostLogits, Logits
from appliance.kernels.moving import HostMover
from appliance.kernels.packed_cache import PackedCache
from appliance.kernels.ranks import Ranks, pages
from appliance.kernels.sampling import SampledBatch, SamplingBatch
from appliance.layers.adapters import plain_positions
from appliance.program import operators as ops
from appliance.program.arena import plan_arena, plan_shared_arena
from appliance.program.roofline import program_work
from appliance.program.slots import Extent, Slot
from appliance.program.work import Forms, OperatorWork

# Up to 4 decodes are memory-bound: one core is nearly as fast as all. More are compute-bound: with one of two cores
# busy elsewhere, an early step takes twice as long (16 decodes: 0.99x).
EARLY_ROWS = 4


class CpuKernelSet:
    def __init__(self, level: str, library: Library | None = None) -> None:
        """Loads the level's library. Raises KernelSetError if it is not built or not for this processor."""
        self.name = f"cpu-{level}"
        self._library = library or load_level(level)

    def bind(
        self,
        program: ops.StepProgram,
        weights: Mapping[str, CanonicalWeight],
        execution: Execution,
        cache: PackedCache | None = None,
        adapted: ops.StepProgram | None = None,
    ) -> "CpuExecutable":
        """Binds a program, and the one with places for adapters over the same weights and memory.

        Raises BindError if sizes do not fit together or the set does not support the request.
        """
        check_host(self.name, program, execution.placement)
        with contextlib.ExitStack() as resources:
            executable = CpuExecutable(self._library, resources, program, weights, execution, cache, adapted)
            executable.own(resources.pop_all())
            return executable


def load(name: str) -> CpuKernelSet:
    """Loads the set of a level. Raises KernelSetError if it is not built or not for this processor."""
    return CpuKernelSet(name.removeprefix("cpu-"))


class CpuExecutable:
    def __init__(
        self,
        library: Library,
        resources: contextlib.ExitStack,
        program: ops.StepProgram,
        weights: Mapping[str, CanonicalWeight],
        execution: Execution,
        cache: PackedCache | None,
        adapted: ops.StepProgram | None,
        lent: Callable[[BoundWeights], None] | None = None,
    ) -> None:
        """Allocates into `resources`, which the caller closes if this raises. lent: gives weights of another one."""
        limits, numerics, placement = execution.limits, execution.numerics, execution.placement
        self._library = library
        self._run: Callable[..., int] = library.functions.appl_program_run
        self._started = 0  # the revision of the step that was started early; 0 for none
        self._leading = ctypes.c_void_p()  # the program of that step
        self._numerics = numerics
        self._num_threads = placement.num_threads
        self._operators = program
        self._operator_seconds: np.ndarray | None = None
        # Of the program with places for adapters: its seconds, and the operators of the other to which they belong.
        self._adapted_seconds = np.zeros(0 if adapted is None else len(adapted.operators))
        self._plain_positions = [] if adapted is None else plain_positions(program, adapted)
        place_caller(library, resources, placement)
        self._pool = create_pool(library, resources, placement.num_threads)
        bind_workers(library, self._pool, placement)
        self._sampler = NativeSampler(library, self._pool)
        self._weights = BoundWeights(library, self._pool, resources, program.matrices())
        if lent is not None:
            lent(self._weights)
        self._weights.load(weights, program, placement.num_threads, cache)
        self._native_limits = _native_limits(limits, numerics)
        self._kv_cache = KvMemory(library, self._native_limits, program)
        self._states = StateMemory(limits.num_states, program.states)
        self._adapters = None if adapted is None else AdapterMemory(adapted, limits.max_loras, numerics.lora_dtype)
        # Slots live longer beside places for adapters, so where they lie then suits the program without them as well.
        self._at = _place(adapted or program, execution, self._weights, self._adapters)
        self._lockstep = execution.lockstep if self._at.spread else None
        places = Places(self._at, self._kv_cache, self._states)
        programs = (program,) if adapted is None else (program, adapted)
        self._native = NativePrograms(library, self._pool, programs, places, self._native_limits, placement)
        resources.callback(self._native.close)
        self._borrowers: weakref.WeakSet[CpuExecutable] = weakref.WeakSet()
        self._native.create()
        shape = (limits.max_num_sampled, program.logits.width)
        memory, start = self._at.place(program.logits)
        self._logits = memory.floats(start, shape[0] * shape[1]).reshape(shape)
        self._last_logits = HostLogits(self._logits)
        self._kept, self._given = self._rows_of(program.kept, limits), self._rows_of(program.given, limits)
        self._keeps_sampled = program.kept is not None and program.kept.extent is Extent.SAMPLED
        self._num_kept = 0
        self._step = NativeStep()
        self._is_locked = placement.lock_memory
        self._locks = {part: resources.enter_context(contextlib.ExitStack()) for part in ("weights", "caches")}
        self._asleep: frozenset[str] = frozenset()  # of these parts
        for part in self._locks:
            self._lock(part)

    def _lock(self, part: str) -> None:
        """Locks the memory of a part, where the plan says so. Raises BindError."""
        if not self._is_locked:
            return
        memories = (self._kv_cache.memory, self._states.memory)
        caches = [(each.address, each.size_bytes) for each in memories]
        lock_memory(self._weights.ranges() if part == "weights" else caches, self._locks[part])

    def _rows_of(self, slot: Slot | None, limits: ExecutionLimits) -> np.ndarray | None:
        """Returns the memory of a slot, as f32 [most rows, width]."""
        if slot is None:
            return None
        most = limits.max_num_sampled if slot.extent is Extent.SAMPLED else limits.max_num_batched_tokens
        memory, start = self._at.place(slot)
        return memory.floats(start, most * slot.width).reshape(most, slot.width)

    def bind_beside(
        self,
        program: ops.StepProgram,
        weights: Mapping[str, CanonicalWeight],
        execution: Execution,
        lent: Mapping[str, str],
        cache: PackedCache | None = None,
    ) -> "CpuExecutable":
        def lend(borrower: BoundWeights) -> None:
            borrower.borrow(self._weights, lent)

        with contextlib.ExitStack() as resources:
            executable = CpuExecutable(self._library, resources, program, weights, execution, cache, None, lend)
            executable.own(resources.pop_all())
            self._borrowers.add(executable)
            return executable

    def stage_weights(self, weights: Mapping[str, CanonicalWeight]) -> StagedPack:
        return StagedPack(self._weights.stage(weights, self._num_threads), self._put_weights)

    def _put_weights(self, packed: PackedBeside) -> None:
        self.cancel()
        self._weights.put(packed)
        for each in (self, *self._borrowers):
            if each._native.screen is not None:
                each.cancel()
                each._create_native()

    def _create_native(self) -> None:
        self._native.create()
        self.time_operators(self._operator_seconds)

    def sleep(self, *, keep_weights: bool) -> None:
        self.cancel()
        for each in self._locks.values():
            each.close()
        self._asleep = frozenset(self._locks)
        self._native.close()
        self._weights.give_back(keep=keep_weights)
        release_all((self._kv_cache.memory, self._states.memory, *self._at.memories))

    def wake_weights(self, weights: Mapping[str, CanonicalWeight] | None) -> None:
        if "weights" not in self._asleep:
            return
        with as_executable_error():
            self._weights.take_back(weights, self._num_threads)
            self._lock("weights")
            self._create_native()
        self._asleep -= {"weights"}

    def wake_caches(self) -> None:
        if "caches" not in self._asleep:
            return
        with as_executable_error():
            self._lock("caches")
        self._asleep -= {"caches"}

    def own(self, resources: contextlib.ExitStack) -> None:
        """Takes over the allocated resources; they are freed by `close`, or with this object."""
        self._finalizer = weakref.finalize(self, resources.close)

    @property
    def early_rows(self) -> int:
        # A step that was begun and is cancelled would have changed states, or is a round of other replicas too.
        can_cancel = not self._operators.states and self._lockstep is None
        return EARLY_ROWS if self._num_threads > 1 and can_cancel else 0

    @property
    def few_logits(self) -> FewLogits | None:
        return None if self._native.screen is None else FEW_LOGITS

    def run(self, inputs: StepInputs) -> HostLogits:
        if inputs.revision == self._started:
            self._started = 0
            status = self._library.functions.appl_program_finish(self._leading)
        else:
            self.cancel()
            self._step.point_to(inputs)
            self._give(inputs)
            if self._lockstep is not None:
                self._lockstep.promise()
            status = self._run(self._program_of(inputs), self._step.reference)
        if status != 0:
            raise self._library.step_error(status)
        if inputs.adapters is not None and self._operator_seconds is not None:
            np.add.at(self._operator_seconds, self._plain_positions, self._adapted_seconds)
            self._adapted_seconds[:] = 0
        num_rows = inputs.sampled_rows.shape[0]
        self._num_kept = num_rows if self._keeps_sampled else inputs.token_ids.shape[0]
        if self._last_logits.num_rows != num_rows:
            self._last_logits = HostLogits(self._logits[:num_rows])
        return self._last_logits

    def kept(self) -> np.ndarray:
        assert self._kept is not None, "the program keeps nothing"
        return self._kept[: self._num_kept]

    def _give(self, inputs: StepInputs) -> None:
        """Puts what is given into its slot. Raises StepError if it is missing, or does not fit."""
        given = inputs.given
        if given is None and self._given is None:
            return
        if given is None or self._given is None or given.shape != (len(inputs.token_ids), self._given.shape[1]):
            raise StepError("a step is given states of its tokens exactly if the program reads some")
        self._given[: len(given)] = given

    def start(self, inputs: StepInputs) -> None:
        """Begins a step, led by another thread of the pool; with one thread, `run` does it all. Raises like `run`."""
        self.cancel()
        self._step.point_to(inputs)
        self._leading = self._program_of(inputs)
        status = self._library.functions.appl_program_start(self._leading, self._step.reference)
        if status != 0:
            raise self._library.step_error(status)
        self._started = inputs.revision

    def cancel(self) -> None:
        """Cancels the started step, and waits for the operator that runs."""
        if self._started:
            self._started = 0
            self._library.functions.appl_program_cancel(self._leading)

    def sample(self, logits: Logits, batch: SamplingBatch) -> SampledBatch:
        """Samples on the same threads as `run`."""
        self.cancel()
        assert isinstance(logits, HostLogits), "logits are those of this executable"
        return self._sampler.sample(logits, batch)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies blocks (source, destination). Raises StepError for a block number out of range."""
        self.cancel()
        array = np.array(pairs, np.int32).reshape(-1, 2)
        status = self._library.functions.appl_program_copy_blocks(self._native.plain, array.ctypes.data, len(array))
        if status != 0:
            raise self._library.step_error(status)

    def mover(self) -> HostMover:
        return HostMover(self._kv_cache.lanes(), self._states.slots())

    @property
    def expert_tables(self) -> Mapping[int, ExpertTable]:
        return self._at.tables

    def write_rows(self, name: str, start: int, rows: CanonicalWeight) -> None:
        self._weights.write_rows(name, start, rows)

    def put_adapter(self, slot: int, changes: Mapping[str, WeightChange]) -> None:
        self._own_adapters().put(slot, changes)

    def drop_adapter(self, slot: int) -> None:
        self._own_adapters().drop(slot)

    def _own_adapters(self) -> AdapterMemory:
        if self._adapters is None:
            raise BindError("the program was bound without places for adapters")
        return self._adapters

    def _program_of(self, inputs: StepInputs) -> ctypes.c_void_p:
        return self._native.plain if inputs.adapters is None else self._native.adapted

    def prefault(self, block: int) -> None:
        self._kv_cache.prefault(block)

    def time_operators(self, seconds: np.ndarray | None) -> None:
        self._operator_seconds = seconds  # kept alive: the program writes to it
        self._native.time_operators(seconds, None if seconds is None else self._adapted_seconds)

    def operator_work(self) -> tuple[OperatorWork, ...]:
        forms = Forms(self._weights.size_of, self._numerics.kv_dtype, self._numerics.quantize_activations)
        return program_work(self._operators, forms, None if self._native.screen is None else self._native.screen.facts)

    @property
    def shared_keys(self) -> int:
        return self._native.shared_keys

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        screen = {} if self._native.screen is None else {"logit_screen": self._native.screen.size_bytes}
        return {
            "weights": self._weights.size_bytes,
            **screen,
            "kv_cache": self._kv_cache.size_bytes,
            **({"states": self._states.size_bytes} if self._operators.states else {}),
            **({} if self._adapters is None else {"adapters": self._adapters.size_bytes}),
            "activations": self._at.arena.size_bytes,
            **({} if self._at.spread is None else {"spread_rows": self._at.spread.share_bytes}),
            "workspace": self._native.workspace_bytes,
        }

    def close(self) -> None:
        self.cancel()
        self._finalizer()
        self._run = _closed


def _place(
    program: ops.StepProgram, execution: Execution, weights: BoundWeights, adapters: AdapterMemory | None
) -> Addresses:
    """Allocates the arena of the activations, and maps the one that ranks share."""
    limits, ranks = execution.limits, execution.ranks
    assert ranks is None or isinstance(ranks, Ranks), "ranks of a CPU set share memory"
    rows = {Extent.TOKENS: limits.max_num_batched_tokens, Extent.SAMPLED: limits.max_num_sampled}
    arena = plan_arena(program, rows)
    own = MappedMemory(arena.size_bytes)
    addresses = Addresses(own, arena.offsets, weights, adapters=adapters, ranks=ranks, tables=tables_of([program]))
    addresses = replace(addresses, spread=SpreadPlace.of(program, execution.lockstep, rows))
    if ranks is None:
        return addresses
    shared = plan_shared_arena(program, rows)
    memory = MappedMemory(shared.size_bytes, ranks.memory.map(ranks.arena_offset, pages(shared.size_bytes)))
    return replace(addresses, shared=memory, shared_offsets=shared.offsets)


def _native_limits(limits: ExecutionLimits, numerics: Numerics) -> abi.Limits:
    if numerics.kv_dtype not in abi.KV_LAYOUTS:
        hint = f"the CPU sets keep a cache of {', '.join(abi.KV_LAYOUTS)}"
        raise BindError(f"kv_dtype is {numerics.kv_dtype!r}", hint=hint)
    return abi.Limits(
        max_tokens=limits.max_num_batched_tokens,
        max_seqs=limits.max_num_seqs,
        max_sampled=limits.max_num_sampled,
        max_model_len=limits.max_model_len,
        block_size=limits.block_size,
        num_blocks=limits.num_blocks,
        kv_layout=abi.KV_LAYOUTS[numerics.kv_dtype],
        quantize_activations=numerics.quantize_activations,
        num_states=limits.num_states,
    )


def _closed(*_: object) -> int:
    raise ExecutableError("the executable was closed")
