"""The seam between the runner and a kernel set. Inputs are arrays on the host; a set copies them where it must."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from appliance.kernels.execution import Execution
from appliance.kernels.layout import CanonicalWeight
from appliance.kernels.logits import Logits
from appliance.kernels.packed_cache import PackedCache
from appliance.kernels.revision import new_revision
from appliance.kernels.sampling import SampledBatch, SamplingBatch
from appliance.program.operators import StepProgram
from appliance.program.work import OperatorWork

LEAST_SCREENED_TEMPERATURE = 0.001  # below, what is less may not stay less when divided by it


@dataclass(frozen=True, slots=True)
class FewLogits:
    """When it pays to ask a set for the largest logits alone.

    most: so many of a row at most; of more, most of the weights would be read all the same. whole_share: where this
    share of a step's rows or more asks for all logits, all logits of all rows cost no more.
    """

    most: int
    whole_share: float


@dataclass(slots=True)
class PastTokens:
    """Tokens whose logits are lowered before anything is chosen: of row r of the logits table[row[r], :count[r]].

    table: int32 [rows, max_len]; row, count: int32 [R].
    """

    table: np.ndarray
    row: np.ndarray
    count: np.ndarray


@dataclass(slots=True)
class StepInputs:
    """One step, as int32 arrays. Sequences are rows s; a sequence's tokens lie together.

    token_ids, positions, slot_mapping: [T]; query_start: [S + 1]; seq_lens: [S], tokens in the cache after this step;
    block_tables: [S, max_blocks]; sampled_rows: [R], indices into the T tokens.
    num_largest: [R], how many of a row's largest logits are asked for, 0 for all; the others may be any numbers that
    are less than those, also when both are divided by a temperature from
    LEAST_SCREENED_TEMPERATURE to 100. None: all of every row.
    past: tokens that do not count among the largest; they are exact where they are as large. None: no row has any.

    The arrays of an object are never exchanged, but numbers in them may change between two steps: `revision` tells a
    set whether it has seen the arrays before. `follows`: the step is the last one that ran, a token on in each row,
    and token_ids are those that the last `sample` gave, in its order: a set may have them already.
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
    follows: bool = False
    revision: int = field(init=False, default_factory=new_revision, compare=False)


class Executable(Protocol):
    """A bound program with its weights, activations and KV cache: what every set gives. What some sets give beside it
    are the protocols `Eager`, `Screened`, `Lazy` and `Profiled`."""

    def run(self, inputs: StepInputs) -> Logits:
        """Runs one step; the logits of its R rows are valid until the next call. Raises StepError where an input is out
        of bounds; nothing has run then."""

    def sample(self, logits: Logits, batch: SamplingBatch) -> SampledBatch:
        """Samples from logits of this executable, which it leaves unchanged. Raises StepError where an id or a range of
        the batch is out of bounds."""

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies whole KV blocks (source, destination) in every layer."""

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        """Allocated bytes by purpose: weights, logit_screen (where there is one), kv_cache, activations, workspace."""

    def close(self) -> None:
        """Frees everything; later calls raise."""


@runtime_checkable
class Eager(Protocol):
    """A set that can begin a step while its caller does something else."""

    @property
    def early_rows(self) -> int:
        """Rows of a step of decodes up to which beginning early saves time; 0 where it never does."""

    def start(self, inputs: StepInputs) -> None:
        """Begins a step: `run` of inputs of the same revision, whose numbers nobody has changed, ends it. Meanwhile
        nothing but `cancel` is called that uses logits or cache. Raises as `run`."""

    def cancel(self) -> None:
        """Ends a step that was started and is not to be run. What it stored is in the slots of its tokens."""


@runtime_checkable
class Screened(Protocol):
    """A set that can tell the largest logits of a row without computing all."""

    @property
    def few_logits(self) -> FewLogits | None:
        """None where it was bound without a screen: `num_largest` and `past` of inputs are of no use then."""


@runtime_checkable
class Lazy(Protocol):
    """A set whose cache is not resident before it is used."""

    def prefault(self, block: int) -> None:
        """Makes a block's memory resident in every layer, where it is not; what it holds stays as it is."""


@runtime_checkable
class Profiled(Protocol):
    """A set that can tell what each operator of its program does, and how long it takes."""

    def time_operators(self, seconds: np.ndarray | None) -> None:
        """Adds the seconds of operator i to seconds[i] (f64, one an operator of the program) from the next step on;
        None ends it."""

    def operator_work(self) -> tuple[OperatorWork, ...]:
        """What each operator of the program has to do at least."""

    @property
    def shared_keys(self) -> int:
        """Cached tokens that attention of the last step read once for several sequences: how many more these would have
        read by themselves, in each layer without a window."""


class KernelSet(Protocol):
    name: str

    def bind(
        self,
        program: StepProgram,
        weights: Mapping[str, CanonicalWeight],
        execution: Execution,
        cache: PackedCache | None = None,
    ) -> Executable:
        """Packs the weights, each read once in the mapping's order: a lazy mapping keeps a few in memory at most,
        and is asked from several threads. A set that packs takes them from `cache` where they are, and keeps them.

        Raises BindError where sizes do not fit together, or the set cannot do what is asked."""
