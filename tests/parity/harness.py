"""Drives an Executable directly: sequences, their block tables, and steps of chosen chunks. No scheduler."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from appliance.catalog.formats import STORAGES, TensorRole, WeightForm
from appliance.catalog.pooling import PoolingChoice
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.reader import open_tensors
from appliance.kernels.execution import Execution
from appliance.kernels.interface import Executable, KernelSet, StatePieces, StepAdapters, StepInputs
from appliance.layers.program import CompiledDecoder
from appliance.loading.inventory import take_inventory
from appliance.loading.weights import DecoderWeights
from appliance.models.describe import describe
from appliance.plan.types import PrecisionPlan, WeightPlan
from appliance.program.caches import MOST_GROUPS
from appliance.program.operators import StepProgram
from tests.kernels import harness
from tests.kernels.harness import logits_of

BLOCK_SIZE = 4  # small, so that short prompts cross blocks
GROUPS = MOST_GROUPS  # of caches, each with block tables of its own: as many as any of these models has
NUM_STATES = 1024  # slots of recurrent states
CACHE = "hardware.memory.kv_cache=1MiB"
# Models without keys and values have no cache to size, so a spec that sizes one is refused.
WITHOUT_CACHE = {"bert-all", "bert-mean", "falcon_mamba", "mamba", "mamba2", "modernbert-mean", "mpnet-mean"}


def cache_of(name: str) -> tuple[str, ...]:
    """Overrides of a spec that give the tiny model `name` a small cache, if it keeps keys and values."""
    return () if name in WITHOUT_CACHE else (CACHE,)


def execution_of(max_model_len: int = 128, num_blocks: int = 128, **changes: Any) -> Execution:
    """`num_blocks`: of each group."""
    values: dict[str, Any] = {
        "tokens": 128, "seqs": 16, "model_len": max_model_len, "block_size": BLOCK_SIZE,
        "num_blocks": GROUPS * num_blocks, "num_threads": 1, "num_states": NUM_STATES,
    }  # fmt: skip
    return harness.execution_of(**(values | changes))


def precision(facts: ModelFacts, dense: str | None = None, quantize: WeightForm | None = None) -> PrecisionPlan:
    """Native forms; or every matrix as `dense` ("quantization: none"); or dense matrices quantized to one form."""
    roles: tuple[TensorRole, ...] = ("linear", "embedding", "other")
    pairs = dict.fromkeys((tensor.storage, role) for tensor in facts.tensors for role in roles)
    plans = []
    for storage, role in pairs:
        form = STORAGES[storage].form if dense is None else WeightForm(dense)
        form = quantize or form
        plans.append(
            WeightPlan(
                storage=storage,
                role=role,
                layout=form.layout,
                group_size=form.group_size,
                sub_group_size=form.sub_group_size,
                num_tensors=0,
                stored_bytes=0,
                planned_bytes=0,
                error="",
            )
        )
    return PrecisionPlan(weights=tuple(plans), activations="f32", quantize_activations=False, kv_dtype="f32")


def bind(
    facts: ModelFacts,
    kernel_set: KernelSet,
    plan: PrecisionPlan | None = None,
    execution: Execution | None = None,
    pooling: PoolingChoice | None = None,
    *,
    takes_embeds: bool = False,
) -> Executable:
    return bind_adapted(facts, kernel_set, None, plan, execution, pooling, takes_embeds=takes_embeds)[0]


def bind_adapted(
    facts: ModelFacts,
    kernel_set: KernelSet,
    adapt: Callable[[CompiledDecoder], StepProgram] | None,
    plan: PrecisionPlan | None = None,
    execution: Execution | None = None,
    pooling: PoolingChoice | None = None,
    *,
    takes_embeds: bool = False,
) -> tuple[Executable, StepProgram | None]:
    """Binds a checkpoint, and what `adapt` makes of its program."""
    execution = execution or execution_of()
    max_model_len = execution.limits.max_model_len
    described = describe(facts, max_model_len, pooling, takes_embeds=takes_embeds)
    inventory = take_inventory(described, facts, plan or precision(facts))
    compiled = described.stored_as({name: item.form for name, item in inventory.items()}).compiled
    adapted = None if adapt is None else adapt(compiled)
    with open_tensors(facts) as reader:
        weights = DecoderWeights(compiled, inventory, reader, max_model_len)
        return kernel_set.bind(compiled.program, weights, execution, adapted=adapted), adapted


def _int32(*values: Any) -> list[np.ndarray]:
    return [np.asarray(value, np.int32) for value in values]


def by_group(blocks: np.ndarray) -> np.ndarray:
    """The blocks of each group that numbers of a row stand for: [GROUPS, ...]."""
    return np.stack([blocks * GROUPS + group for group in range(GROUPS)]).astype(np.int32)


@dataclass
class Row:
    """One sequence: its tokens, its block tables, and how many tokens are in the cache. Number b of `blocks` stands for
    a block in the table of each group. `states`: the slot of the state after so many tokens, at ends of blocks and of
    steps."""

    token_ids: list[int]
    blocks: list[int]
    num_computed: int = 0
    states: dict[int, int] = field(default_factory=dict)


@dataclass
class Driver:
    """Hands out blocks in a scattered order, one of each group at a time, and runs steps."""

    executable: Executable
    execution: Execution
    adapters: StepAdapters | None = None  # of the sequences of every `step`
    _free: list[int] = field(default_factory=list)
    _free_states: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        order = np.random.default_rng(7).permutation(self.execution.limits.num_blocks // GROUPS)
        self._free = [int(block) for block in order]
        self._free_states = [int(slot) for slot in np.random.default_rng(8).permutation(NUM_STATES)]

    def sequence(self, token_ids: Sequence[int], shared: Row | None = None, with_blocks: bool = False) -> Row:
        """A new sequence; with `shared`, its first full blocks that hold the same tokens are taken as they are."""
        sequence = Row(list(token_ids), [])
        if with_blocks:
            self._grow(sequence, len(token_ids))
        if shared is not None:
            same = 0
            for mine, theirs in zip(token_ids, shared.token_ids[: shared.num_computed], strict=False):
                if mine != theirs:
                    break
                same += 1
            full = min(same, len(token_ids) - 1) // self.execution.limits.block_size
            sequence.blocks = shared.blocks[:full]
            sequence.num_computed = full * self.execution.limits.block_size
            sequence.states = dict(shared.states)
        return sequence

    def _grow(self, sequence: Row, num_tokens: int) -> None:
        while len(sequence.blocks) * self.execution.limits.block_size < num_tokens:
            sequence.blocks.append(self._free.pop())

    def _pieces(self, chunks: Sequence[tuple[Row, int]]) -> StatePieces | None:
        """Pieces that leave a state at the end of every block and of the chunk, each in a slot of its own."""
        if "states" not in self.executable.memory_bytes:
            return None
        size, count = self.execution.limits.block_size, 0
        first, start, source, target = [0], [0], [], []
        for sequence, length in chunks:
            at, end = sequence.num_computed, sequence.num_computed + length
            for stop in [*range((at // size + 1) * size, end, size), end]:
                source.append(sequence.states[at] if at else -1)
                sequence.states[stop] = self._free_states.pop(0)
                target.append(sequence.states[stop])
                count, at = count + stop - at, stop
                start.append(count)
            first.append(len(target))
        for slot in target:  # slots are used again in turn
            self._free_states.append(slot)
        return StatePieces(*_int32(first, start, source, target))

    def step(self, chunks: Sequence[tuple[Row, int]], sample: Sequence[bool] | None = None) -> np.ndarray:
        """Runs the next `length` tokens of each sequence; logits of each chunk's last token where `sample` says so."""
        wanted = list(sample) if sample is not None else [True] * len(chunks)
        pieces = self._pieces(chunks)
        tokens, positions, slots, starts, lengths, rows = [], [], [], [0], [], []
        for (sequence, length), want in zip(chunks, wanted, strict=True):
            begin, end = sequence.num_computed, sequence.num_computed + length
            self._grow(sequence, end)
            tokens += sequence.token_ids[begin:end]
            positions += range(begin, end)
            size = self.execution.limits.block_size
            slots += [(sequence.blocks[p // size], p % size) for p in range(begin, end)]
            starts.append(len(tokens))
            lengths.append(end)
            sequence.num_computed = end
            if want:
                rows.append(len(tokens) - 1)
        width = max(len(sequence.blocks) for sequence, _ in chunks)
        tables = np.zeros((len(chunks), width), np.int32)
        for index, (sequence, _) in enumerate(chunks):
            tables[index, : len(sequence.blocks)] = sequence.blocks
        blocks, offsets = np.array(slots, np.int32).T
        slot_mapping = by_group(blocks) * np.int32(self.execution.limits.block_size) + offsets
        tokens_T, positions_T, starts_S, lengths_S, rows_R = _int32(tokens, positions, starts, lengths, rows)
        inputs = StepInputs(
            tokens_T,
            positions_T,
            slot_mapping,
            starts_S,
            lengths_S,
            by_group(tables),
            rows_R,
            states=pieces,
            adapters=self.adapters,
        )
        return logits_of(self.executable, inputs)

    def all_logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """Logits after every token of one whole prompt, f32 [n, V]."""
        sequence = self.sequence(token_ids)
        n = len(token_ids)
        pieces = self._pieces([(sequence, n)])
        self._grow(sequence, n)
        size, at = self.execution.limits.block_size, np.arange(n)
        table = np.asarray(sequence.blocks, np.int32)
        slots = by_group(table[at // size]) * size + at % size
        tokens, positions, slots, starts, lengths, rows = _int32(token_ids, at, slots, [0, n], [n], at)
        inputs = StepInputs(
            tokens, positions, slots, starts, lengths, by_group(table.reshape(1, -1)), rows, states=pieces
        )
        return logits_of(self.executable, inputs)

    def greedy(self, token_ids: Sequence[int], count: int) -> list[int]:
        """The `count` most likely tokens after a prompt, one after the other."""
        return self.continue_greedily(self.sequence(token_ids), count)

    def continue_greedily(self, sequence: Row, count: int, chunk: int = 1 << 30) -> list[int]:
        """Runs what is not in the cache yet, at most `chunk` tokens a step, then makes `count` tokens."""
        made: list[int] = []
        while len(made) < count:
            left = len(sequence.token_ids) - sequence.num_computed
            logits = self.step([(sequence, min(left, chunk))], sample=[left <= chunk])
            if left <= chunk:
                made.append(int(logits[0].argmax()))
                sequence.token_ids.append(made[-1])
        return made
