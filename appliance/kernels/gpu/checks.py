"""What is asked of a step and of a sampling batch on the host, before the device is given anything.

A device reads past the end of a table without a word, so every number that is an index is looked at here.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from appliance.kernels.errors import StepError
from appliance.kernels.execution import ExecutionLimits
from appliance.kernels.gpu.matrices import DeviceMatrix
from appliance.kernels.interface import StepInputs
from appliance.kernels.sampling import NO_LOGPROBS, NO_MASK, NO_TOKEN, SamplingBatch
from appliance.program.operators import Embed, StepProgram, WholeAttention


class StepBounds:
    """The bounds of a bound program's steps."""

    def __init__(
        self, program: StepProgram, limits: ExecutionLimits, vocabulary: int, num_types: int, *, has_adapters: bool
    ) -> None:
        """vocabulary: the ids that have an embedding. num_types: the segments that have one, at least 1."""
        self._limits, self._vocabulary, self._num_types = limits, vocabulary, num_types
        self._num_groups = len(program.kv_layout().groups)
        self._has_states, self._has_adapters = bool(program.states), has_adapters
        self._is_given, self._embeds_width = program.given is not None, program.embeds_width
        self._is_whole = any(isinstance(op, WholeAttention) for op in program.operators)

    def check(self, inputs: StepInputs) -> None:
        """Raises StepError if a number of a step is out of bounds."""
        limits, tokens = self._limits, len(inputs.token_ids)
        _require(tokens <= limits.max_num_batched_tokens, "num_tokens is beyond its limit")
        _require(len(inputs.seq_lens) <= limits.max_num_seqs, "num_seqs is beyond its limit")
        _require(len(inputs.sampled_rows) <= limits.max_num_sampled, "num_sampled is beyond its limit")
        is_fed = inputs.follows  # the device has the tokens, and the host's are not read
        _require(is_fed or _within(inputs.token_ids, self._vocabulary), "a token id is outside the vocabulary")
        _require(_within(inputs.positions, limits.max_model_len), "a position is beyond max_model_len")
        types = inputs.token_types
        _require(types is None or _within(types, self._num_types), "a token's type is not in the model")
        _require(_within(inputs.sampled_rows, tokens), "a sampled row is no token")
        if inputs.embeds is not None:
            inputs.embeds.check(tokens, self._embeds_width)
        self._check_sequences(inputs, tokens)
        self._check_tables(inputs)
        self._check_pieces(inputs)
        _require((inputs.given is not None) == self._is_given, "it is given states exactly if the program reads some")

    def _check_sequences(self, inputs: StepInputs, tokens: int) -> None:
        start, lengths = inputs.query_start, inputs.seq_lens
        counts = np.diff(start)
        _require(start[0] == 0 and start[-1] == tokens, "query_start does not cover the tokens")
        is_bad = (counts < 0) | (counts > lengths) | (lengths > self._limits.max_model_len)
        _require(not is_bad.any(), "a sequence has a bad length")
        message = "a sequence is not whole, and the model keeps nothing of the rest"
        _require(not self._is_whole or bool((counts == lengths).all()), message)
        adapters = inputs.adapters
        _require(adapters is None or self._has_adapters, "it has adapters, and the program has no places for them")
        slots = self._limits.max_loras
        is_there = adapters is None or bool((adapters.slots < slots).all())
        _require(is_there, "a sequence's adapter has no such slot")

    def _check_tables(self, inputs: StepInputs) -> None:
        limits = self._limits
        given = min(len(inputs.slot_mapping), len(inputs.block_tables))
        _require(given >= self._num_groups, "a group of caches has no block tables")
        if not self._num_groups:
            return
        slots = inputs.slot_mapping[: self._num_groups]
        _require(bool((slots < limits.num_blocks * limits.block_size).all()), "a slot is outside the cache")
        blocks = -(-inputs.seq_lens // limits.block_size)
        tables = inputs.block_tables[: self._num_groups]
        _require(bool((blocks <= tables.shape[2]).all()), "a block table is shorter than its sequence")
        used = np.arange(tables.shape[2]) < blocks[:, None]
        is_bad = ((tables < 0) | (tables >= limits.num_blocks)) & used
        _require(not is_bad.any(), "no such block")

    def _check_pieces(self, inputs: StepInputs) -> None:
        pieces = inputs.states
        if pieces is None:
            _require(not self._has_states, "the program has states, and the step has no pieces")
            return
        _require(self._has_states, "it has pieces, and the program has no states")
        first, start = pieces.first, pieces.start
        covers = first[0] == 0 and first[-1] == len(pieces.source) and bool((np.diff(first) >= 0).all())
        _require(covers, "the sequences do not have all pieces")
        _require(bool((start[first] == inputs.query_start).all()), "the pieces of a sequence are not its tokens")
        _require(bool((np.diff(start) >= 0).all()), "a piece ends before it begins")
        slots = self._limits.num_states
        in_reach = bool((pieces.source < slots).all()) and _within(pieces.target, slots)
        _require(in_reach, "a piece names a state that is not there")
        self._check_owners(np.repeat(np.arange(len(first) - 1), np.diff(first)), pieces.source, pieces.target)

    def _check_owners(self, sequence: np.ndarray, source: np.ndarray, target: np.ndarray) -> None:
        """sequence: of each piece. Sequences run at once, so what one writes no other may touch."""
        writer = np.full(self._limits.num_states, -1)
        writer[target] = sequence
        _require(bool((writer[target] == sequence).all()), "two sequences write one state")
        reads = source >= 0
        of_source = writer[source[reads]]
        is_own = (of_source < 0) | (of_source == sequence[reads])
        _require(bool(is_own.all()), "a sequence reads a state that another writes")


def vocabulary_of(
    program: StepProgram, matrices: Mapping[str, DeviceMatrix], vectors: Mapping[str, torch.Tensor]
) -> tuple[int, int]:
    """Returns how many token ids and how many segments have embeddings."""
    rows = {name: matrix.shape[0] for name, matrix in matrices.items()}
    rows |= {name: len(vector) for name, vector in vectors.items()}
    tables = [op for op in program.operators if isinstance(op, Embed)]
    ids = [rows[op.table] if op.own is None else op.num_tokens for op in tables if op.missing_row is None]
    types = [rows[op.type_table] for op in tables if op.type_table is not None]
    return min(ids, default=np.iinfo(np.int32).max), min(types, default=1)


def check_sampling(batch: SamplingBatch, vocabulary: int) -> None:
    """Raises StepError if an id or a range of a batch is out of bounds."""
    for start, ids in ((batch.bias_start, batch.bias_ids), (batch.forbidden_start, batch.forbidden_ids)):
        follow = start[0] == 0 and start[-1] <= len(ids) and bool((np.diff(start) >= 0).all())
        _require(bool(follow), "ranges do not follow each other", "sampling")
        _require(_within(ids, vocabulary), "a token id is outside the vocabulary", "sampling")
    given = batch.given_token_ids
    _require(bool(((given >= NO_TOKEN) & (given < vocabulary)).all()), "a given token is out of bounds", "sampling")
    _require(bool((batch.num_logprobs >= NO_LOGPROBS).all()), "less than no log-probabilities", "sampling")
    _require(bool((batch.num_logprobs <= vocabulary).all()), "no room for log-probabilities", "sampling")
    masks = batch.mask_row
    in_reach = (masks == NO_MASK) | ((masks >= 0) & (masks < len(batch.mask_bits)))
    _require(bool(in_reach.all()), "a row has no such mask", "sampling")
    _check_past(batch, penalized_rows(batch), vocabulary)


def penalized_rows(batch: SamplingBatch) -> Sequence[int]:
    """Returns the rows with a penalty."""
    has = (batch.repetition_penalty != 1) | (batch.presence_penalty != 0) | (batch.frequency_penalty != 0)
    rows: list[int] = np.flatnonzero(has).tolist()
    return rows


def _check_past(batch: SamplingBatch, rows: Sequence[int], vocabulary: int) -> None:
    table = batch.token_table
    for row in rows:
        at, count = batch.token_row[row], batch.num_tokens[row]
        _require(0 <= at < len(table) and count <= table.shape[1], "a row has more tokens than its table", "sampling")
        _require(_within(table[at, :count], vocabulary, NO_TOKEN), "a past token is outside the vocabulary", "sampling")


def _within(numbers: np.ndarray, end: int, first: int = 0) -> bool:
    return bool(((numbers >= first) & (numbers < end)).all())


def _require(holds: bool, problem: str, where: str = "step") -> None:
    if not holds:
        raise StepError(f"{where}: {problem}")
