"""The seam between the runner and a kernel set. Inputs are arrays on the host; a set copies them if it must."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np

from appliance.kernels.execution import Execution
from appliance.kernels.expert_tables import ExpertTable
from appliance.kernels.layout import CanonicalWeight
from appliance.kernels.logits import Logits
from appliance.kernels.packed_cache import PackedCache
from appliance.kernels.revision import new_revision
from appliance.kernels.sampling import SampledBatch, SamplingBatch
from appliance.kernels.step_embeds import StepEmbeds
from appliance.program.operators import StepProgram
from appliance.program.work import OperatorWork

LEAST_SCREENED_TEMPERATURE = 0.001  # dividing by less can make different logits equal


@dataclass(frozen=True, slots=True)
class FewLogits:
    """The limits within which it pays to compute only the largest logits.

    most: at most so many of a row; for more, most of the weights would be read anyway. whole_share: if this share of a
    step's rows or more needs all logits, computing all logits of all rows costs no more.
    """

    most: int
    whole_share: float


@dataclass(slots=True)
class PastTokens:
    """The tokens whose logits penalties lower before sampling: table[row[r], :count[r]] for row r of the logits.

    table: int32 [rows, max_len]; row, count: int32 [R].
    """

    table: np.ndarray
    row: np.ndarray
    count: np.ndarray


@dataclass(slots=True)
class StatePieces:
    """Where a step finds states and leaves them, as int32 arrays. Sequence s has the pieces first[s] to
    first[s + 1] - 1, which together are its tokens of the step.

    Piece p is the tokens start[p] to start[p + 1] - 1. It begins with the state in slot source[p], or with zeros if
    that is negative, and leaves its last state in slot target[p]. An empty piece copies. The pieces of a sequence run
    in order, and those of different sequences at once: no sequence may write a slot that another reads or writes.

    first: [S + 1]; start: [P + 1]; source, target: [P].
    """

    first: np.ndarray
    start: np.ndarray
    source: np.ndarray
    target: np.ndarray


@dataclass(slots=True)
class StepAdapters:
    """The adapters of the sequences of a step.

    slots: int32 [S], the slot of each sequence's adapter, negative for none. scales: f32 [S], factors of its output.
    """

    slots: np.ndarray
    scales: np.ndarray


@dataclass(frozen=True, slots=True)
class WeightChange:
    """What an adapter adds to the product y of one weight [n, d] and x: up @ down @ x + stretch * y + shift.

    down: [r, d]; up: [n, r], with alpha in it, or [n, d] without `down`, a matrix of the weight's own shape. stretch
    and shift: [n], and none for an embedding. None: there is none. All are in the type that was planned for adapters:
    float32, or bf16 as uint16.
    """

    down: np.ndarray | None = None
    up: np.ndarray | None = None
    stretch: np.ndarray | None = None
    shift: np.ndarray | None = None

    @property
    def rank(self) -> int:
        """The rank of a product; 0 if there is none, or a whole matrix."""
        return 0 if self.down is None else int(self.down.shape[0])

    def of_rows(self, start: int, stop: int) -> "WeightChange":
        """Returns what it adds to some rows of the product."""
        parts = {name: getattr(self, name) for name in ("up", "stretch", "shift")}
        return replace(self, **{name: None if part is None else part[start:stop] for name, part in parts.items()})

    @property
    def is_zero(self) -> bool:
        """Says whether it changes nothing."""
        has_product = self.up is not None and self.up.any() and (self.down is None or self.down.any())
        return not has_product and not any(each is not None and each.any() for each in (self.stretch, self.shift))


@dataclass(slots=True)
class StepInputs:
    """One step, as int32 arrays. Sequences are rows s; a sequence's tokens lie together.

    token_ids, positions: [T]; query_start: [S + 1]; seq_lens: [S], tokens in the cache after this step;
    sampled_rows: [R], indices into the T tokens.
    slot_mapping: [G, T], block_tables: [G, S, max_blocks], for each of the program's groups of caches (KvLayout), in
    one pool of blocks. A table may have any block in place of one that left the window.
    num_largest: [R], how many of a row's largest logits must be exact, 0 for all; the others may be any smaller
    numbers, which stay smaller when divided by a temperature from LEAST_SCREENED_TEMPERATURE to 100. None: all logits
    of every row.
    token_types: [T], the segment of each token in a model that has several. None: 0 for every token.
    past: tokens that do not count among the largest; their logits are exact if they are as large. None: no row has any.
    states: None exactly if the program has no states.
    adapters: None if no sequence has one; then the program runs that knows of none.
    given: f32 [T, W], what the program's `given` slot holds; None exactly if it has none.
    embeds: embeddings in place of some tokens. None: there are none.

    The arrays of an object are never replaced, but their numbers may change between two steps: `revision` tells a set
    whether it has seen the arrays before. `follows`: the step is the last one advanced by one token in each row, and
    token_ids are those that the last `sample` gave, in its order: a set may have them already.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    slot_mapping: np.ndarray
    query_start: np.ndarray
    seq_lens: np.ndarray
    block_tables: np.ndarray
    sampled_rows: np.ndarray
    num_largest: np.ndarray | None = None
    past: PastTokens | None = None
    states: StatePieces | None = None
    token_types: np.ndarray | None = None
    adapters: StepAdapters | None = None
    given: np.ndarray | None = None
    embeds: StepEmbeds | None = None
    follows: bool = False
    revision: int = field(init=False, default_factory=new_revision, compare=False)


class Executable(Protocol):
    """A bound program with its weights, activations, KV cache and states. Some sets also implement the protocols
    `Eager`, `Screened`, `Lazy`, `Graphed` and `Profiled`."""

    def run(self, inputs: StepInputs) -> Logits:
        """Runs one step; the logits of its R rows are valid until the next call. Raises StepError, before anything has
        run, if an input is out of bounds."""

    def sample(self, logits: Logits, batch: SamplingBatch) -> SampledBatch:
        """Samples from logits of this executable without changing them. Raises StepError if an id or a range of the
        batch is out of bounds."""

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies whole KV blocks (source, destination), with all layers that are in them."""

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        """Allocated bytes by purpose: weights, logit_screen and states (if there are any), kv_cache, activations,
        workspace."""

    def close(self) -> None:
        """Frees everything; later calls raise."""


@runtime_checkable
class Eager(Protocol):
    """A set that can begin a step while its caller does something else."""

    @property
    def early_rows(self) -> int:
        """The largest number of decode rows for which beginning a step early saves time; 0 if it never does."""

    def start(self, inputs: StepInputs) -> None:
        """Begins a step, which `run` of the same unchanged inputs (same revision) ends. In between, the caller must not
        use logits or cache, except to `cancel`. Raises like `run`."""

    def cancel(self) -> None:
        """Ends a started step that will not be run. The slots of its tokens may have been written."""


class PendingSample(Protocol):
    """Sampling that a device was given."""

    def result(self) -> SampledBatch:
        """Waits for the tokens, and for nothing that was given to the device after them."""


@runtime_checkable
class Feeding(Protocol):
    """A set whose next step takes the sampled tokens where they are: it may be started before the host has them."""

    def begin_sampling(self, logits: Logits, batch: SamplingBatch) -> PendingSample:
        """Begins to sample, as `sample` does and with its errors. A step with `follows` that is started behind it
        reads these tokens; the token_ids of its inputs are not read."""

    def some(self, logits: Logits, rows: np.ndarray) -> Logits:
        """Returns the logits of some rows, int32 [n], where others of a step are not wanted any more."""


@runtime_checkable
class Screened(Protocol):
    """A set that can find the largest logits of a row without computing all."""

    @property
    def few_logits(self) -> FewLogits | None:
        """The limits for computing few logits; None if it was bound without a screen: it then ignores `num_largest` and
        `past` of inputs."""


@runtime_checkable
class Lazy(Protocol):
    """A set whose cache is not resident before it is used."""

    def prefault(self, block: int) -> None:
        """Makes all memory of a block resident, without changing its content."""


@dataclass(frozen=True, slots=True)
class GraphReport:
    """The graphs of a set: sizes of steps that are captured, of those that are planned, and what capturing took."""

    num_captured: int = 0
    num_planned: int = 0
    seconds: float = 0.0


@runtime_checkable
class Sleeps(Protocol):
    """A set that can give the memory of weights and caches back, and take it again. No step runs in between."""

    def sleep(self, *, keep_weights: bool) -> None:
        """Gives back what caches, states and weights take; the content of caches and states is lost. keep_weights: that
        of weights is copied to the host."""

    def wake_weights(self, weights: Mapping[str, CanonicalWeight] | None) -> None:
        """Takes memory for the weights again. weights: they are read from there; None if they were kept. Raises
        ExecutableError if there is not enough."""

    def wake_caches(self) -> None:
        """Takes memory for caches and states again, without content. Raises ExecutableError like `wake_weights`."""


@runtime_checkable
class Graphed(Protocol):
    """A set that captures steps as graphs. It does so by itself while steps run; an idle engine asks for more."""

    def capture_next(self) -> bool:
        """Captures one more of the planned sizes, while no step runs or was started. Returns False if all are
        captured."""

    @property
    def graphs(self) -> GraphReport:
        """What is captured by now."""


@runtime_checkable
class Profiled(Protocol):
    """A set that reports the work and the time of each operator of its program."""

    def time_operators(self, seconds: np.ndarray | None) -> None:
        """Adds the seconds of operator i to seconds[i] (f64 [operators of the program]) from the next step on; None
        ends it."""

    def operator_work(self) -> tuple[OperatorWork, ...]:
        """Returns the least work of each operator of the program."""

    @property
    def shared_keys(self) -> int:
        """The cached tokens whose reading the last step's cascade attention saved, in each layer of the first group
        without a window: it read a prefix once for several sequences."""


@runtime_checkable
class Adapters(Protocol):
    """A set that was bound with places for adapters."""

    def put_adapter(self, slot: int, changes: Mapping[str, WeightChange]) -> None:
        """Puts an adapter into a slot that no step uses meanwhile; a step may run. changes: by logical weight. Raises
        BindError for a slot, a weight, a shape or a rank that there is no place for."""

    def drop_adapter(self, slot: int) -> None:
        """Empties a slot that no running sequence has: with it, the model gives what it gives alone."""


class BlockMover(Protocol):
    """Copies blocks and states to host memory and back: to the rows `places` of `memory`, uint8 [P, block_bytes]. No
    step may run, or have begun early, meanwhile."""

    @property
    def block_bytes(self) -> int:
        """The bytes of a block, with all layers that are in it; 0 for a program without caches."""

    @property
    def state_bytes(self) -> int:
        """The bytes of a slot of all recurrent states; 0 for a program without any."""

    def store_blocks(self, blocks: Sequence[int], memory: np.ndarray, places: Sequence[int]) -> None:
        """Copies block blocks[i] to place places[i]."""

    def load_blocks(self, blocks: Sequence[int], memory: np.ndarray, places: Sequence[int]) -> None:
        """Copies place places[i] to block blocks[i]."""

    def stored_state(self, slot: int) -> np.ndarray:
        """Returns a copy of all states in a slot, uint8 [state_bytes]."""

    def load_state(self, slot: int, state: np.ndarray) -> None:
        """Copies the first state_bytes of `state`, as `stored_state` gave them, to a slot."""


@runtime_checkable
class Moves(Protocol):
    """A set whose blocks and states can be copied to host memory and back."""

    def mover(self) -> BlockMover:
        """Returns what copies them, until the executable is closed."""


@runtime_checkable
class MovesExperts(Protocol):
    """A set whose experts can be put in other places while no step runs."""

    @property
    def expert_tables(self) -> Mapping[int, ExpertTable]:
        """The places of the experts of each mixture that has a PlaceExperts."""

    def write_rows(self, name: str, start: int, rows: CanonicalWeight) -> None:
        """Replaces rows of a bound matrix, or numbers of a vector, from `start` on. Raises BindError for rows of
        another form."""


@runtime_checkable
class Lending(Protocol):
    """A set whose packed weights another program may read, so that there is one copy of them."""

    def bind_beside(
        self,
        program: StepProgram,
        weights: Mapping[str, CanonicalWeight],
        execution: Execution,
        lent: Mapping[str, str],
        cache: PackedCache | None = None,
    ) -> Executable:
        """Binds a program as `KernelSet.bind`. lent: by the names of matrices of it, which are not in `weights`, those
        of this executable, which is closed after the last step of the other."""


@runtime_checkable
class Staged(Protocol):
    """A set that runs several steps at once, each in another of its stages. It runs them in the order in which they
    begin, and all of them to their end."""

    @property
    def num_stages(self) -> int:
        """The most steps that can have begun and not ended."""

    def begin(self, inputs: StepInputs) -> int:
        """Begins a step, and returns its number; the arrays may then change. Raises like `run`."""

    def finish(self, number: int) -> Logits:
        """Waits for the logits of a step, which are valid until another one begins. Steps are finished in order."""


@runtime_checkable
class Keeping(Protocol):
    """A set that lets what a program keeps be read."""

    def kept(self) -> np.ndarray:
        """Returns the rows of the program's `kept` slot of the last step, f32 [T or R, W], until the next call."""


class KernelSet(Protocol):
    name: str

    def bind(
        self,
        program: StepProgram,
        weights: Mapping[str, CanonicalWeight],
        execution: Execution,
        cache: PackedCache | None = None,
        adapted: StepProgram | None = None,
    ) -> Executable:
        """Binds a program, and `adapted`, the same with places for adapters, over the same weights and memory.

        It reads each weight once, in the mapping's order and from several threads, so that a lazy mapping has few in
        memory at a time. A set that packs loads packed weights from `cache`, or stores them there.

        Raises BindError if sizes do not fit together or the set does not support the request.
        """
