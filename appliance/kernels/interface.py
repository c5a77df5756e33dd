"""The seam between the runner and a kernel set. Arrays are numpy on the CPU side; a set copies them where it must."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from appliance.kernels.layout import CanonicalWeight
from appliance.kernels.packed_cache import PackedCache
from appliance.kernels.sampling import SampledBatch, SamplingBatch
from appliance.program.operators import StepProgram
from appliance.program.work import OperatorWork


@dataclass(frozen=True, slots=True)
class ExecutionLimits:
    """Sizes that binding allocates for; a step never exceeds them."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_num_sampled: int
    max_model_len: int
    block_size: int
    num_blocks: int
    kv_dtype: str  # "f32", "bf16", "f16"
    num_threads: int
    quantize_activations: bool  # for integer weights, int8 in groups of min(group_size, 256) columns; else f32
    screen_logits: bool = False  # keep a copy of the head in fewer bits, for steps that ask for the largest logits


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
    are less than those, also when both are divided by a temperature of 0.001 to 100. None: all of every row.
    past: tokens that do not count among the largest; they are exact where they are as large. None: no row has any.
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


class Executable(Protocol):
    """A bound program with its weights, arena and KV cache."""

    def run(self, inputs: StepInputs) -> np.ndarray:
        """Runs one step; returns logits f32 [R, V], valid (and writable) until the next call."""

    def start(self, inputs: StepInputs) -> None:
        """Begins a step, as far as the set can, while the caller does something else: `run` of the same object, whose
        arrays nobody has changed, ends it. Meanwhile nothing but `cancel` is called that uses logits or cache."""

    def cancel(self) -> None:
        """Ends a step that was started and is not to be run. What it stored is in the slots of its tokens."""

    def sample(self, logits: np.ndarray, batch: SamplingBatch) -> SampledBatch:
        """Samples from logits f32 [R, V] (any array, left unchanged) on the same threads as `run`."""

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies whole KV blocks (source, destination) in every layer."""

    def prefault(self, block: int) -> None:
        """Makes a block's memory resident in every layer, where it is not; what it holds stays as it is."""

    def time_operators(self, seconds: np.ndarray | None) -> None:
        """Adds the seconds of operator i to seconds[i] (f64, one an operator of the program) from the next step on;
        None ends it."""

    def operator_work(self) -> tuple[OperatorWork, ...]:
        """What each operator of the program has to do at least; empty where nothing can be told."""

    @property
    def shared_keys(self) -> int:
        """Cached tokens that attention of the last step read once for several sequences: how many more these would have
        read by themselves, in each layer without a window."""

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        """Allocated bytes by purpose: weights, logit_screen (where there is one), kv_cache, activations, workspace."""

    def close(self) -> None:
        """Frees everything; later calls raise."""


class KernelSet(Protocol):
    name: str

    def bind(
        self,
        program: StepProgram,
        weights: Mapping[str, CanonicalWeight],
        limits: ExecutionLimits,
        cache: PackedCache | None = None,
    ) -> Executable:
        """Packs the weights, each read once in the mapping's order: a lazy mapping keeps a few in memory at most,
        and is asked from several threads. A set that packs takes them from `cache` where they are, and keeps them."""
