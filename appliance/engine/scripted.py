"""A back-end for tests: an Executable whose model is a script. It needs no native library.

The context of every row is read back from a KV cache of token ids through the block tables, so a mistake in blocks,
slots or positions changes what is generated. Selected by the kernel set name "scripted", which no planner offers.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from appliance.kernels.interface import StepInputs
from appliance.kernels.logits import Float32Array, HostLogits, Logits
from appliance.kernels.sampling import NO_LOGPROBS, NO_MASK, NO_TOKEN, SampledBatch, SamplingBatch

NextToken = Callable[[list[int]], int]

CHOSEN_LOGIT = 10.0  # of the scripted token; all others have 0


class Reply(msgspec.Struct, frozen=True):
    """After a context that ends with `prompt`, the model generates `tokens`, then the script's `eos`."""

    prompt: list[int]
    tokens: list[int]


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The script of a model, as JSON. After a context that no reply fits, the next token is the last one plus 1."""

    vocab_size: int = 512
    eos: int = 0
    replies: list[Reply] = []
    step_seconds: float = 0.0  # each step takes at least this long
    hang_at_step: int | None = None  # that step never ends
    crash_at_step: int | None = None  # that step raises
    nan_token: int | None = None  # rows whose context holds it get NaN logits
    load_seconds: float = 0.0

    @classmethod
    def read(cls, path: Path) -> "Script":
        return msgspec.json.decode(path.read_bytes(), type=cls)


def scripted_model(script: Script) -> NextToken:
    """Returns a function from a context to its next token, by the reply that fits the longest end of the context."""

    def next_token(context: list[int]) -> int:
        longest, token = -1, (context[-1] + 1) % script.vocab_size
        for reply in script.replies:
            for said in range(len(reply.tokens), -1, -1):
                fitting = reply.prompt + reply.tokens[:said]
                if len(fitting) > longest and context[len(context) - len(fitting) :] == fitting:
                    longest, token = len(fitting), reply.tokens[said] if said < len(reply.tokens) else script.eos
        return token

    return next_token


class ScriptedExecutable:
    """Keeps token ids where a model keeps keys and values; gives logits with one high entry."""

    def __init__(
        self, next_token: NextToken, vocab_size: int, num_blocks: int, block_size: int, script: Script | None = None
    ) -> None:
        self._next_token = next_token
        self._vocab_size = vocab_size
        self._block_size = block_size
        self._cells = np.full(num_blocks * block_size, -1, np.int32)
        self._script = script or Script()
        self.num_steps = 0

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        return {"weights": 0, "kv_cache": self._cells.nbytes, "activations": 0, "workspace": 0}

    def run(self, inputs: StepInputs) -> HostLogits:
        self.num_steps += 1
        self._misbehave()
        slots = inputs.slot_mapping[0]  # it has one cache
        stored = slots >= 0
        self._cells[slots[stored]] = inputs.token_ids[stored]
        logits = np.zeros((len(inputs.sampled_rows), self._vocab_size), np.float32)
        sequences = np.searchsorted(inputs.query_start, inputs.sampled_rows, side="right") - 1
        for at, (token, sequence) in enumerate(zip(inputs.sampled_rows, sequences, strict=True)):
            context = self._context(inputs.block_tables[0, sequence], int(inputs.positions[token]) + 1)
            if self._script.nan_token is not None and self._script.nan_token in context:
                logits[at] = np.nan
            else:
                logits[at, self._next_token(context)] = CHOSEN_LOGIT
        return HostLogits(logits)

    def sample(self, logits: Logits, batch: SamplingBatch) -> SampledBatch:
        assert isinstance(logits, HostLogits), "logits are those of this executable"
        return argmax_sample(logits.values, batch)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        blocks = self._cells.reshape(-1, self._block_size)
        for source, target in pairs:
            blocks[target] = blocks[source]

    def prefault(self, block: int) -> None:
        """Does nothing: it makes this a Lazy executable, so that an idle engine's work can be tested."""

    def close(self) -> None:
        self._cells = np.zeros(0, np.int32)

    def _context(self, table: np.ndarray, length: int) -> list[int]:
        cells = self._cells.reshape(-1, self._block_size)[table[: -(-length // self._block_size)]]
        context: list[int] = cells.reshape(-1)[:length].tolist()
        assert min(context) >= 0, "a block is read that was never written"
        return context

    def _misbehave(self) -> None:
        if self.num_steps == self._script.crash_at_step:
            raise RuntimeError(f"scripted crash in step {self.num_steps}")
        if self._script.step_seconds:
            time.sleep(self._script.step_seconds)
        while self.num_steps == self._script.hang_at_step:
            time.sleep(1.0)


def argmax_sample(logits: Float32Array, batch: SamplingBatch) -> SampledBatch:
    """Samples greedily at any temperature; applies masks, forbidden ids and biases, and gives log-probabilities."""
    scores = logits.copy()
    for row in range(batch.num_rows):
        if batch.mask_row[row] != NO_MASK:
            bits = np.unpackbits(batch.mask_bits[batch.mask_row[row]].view(np.uint8), bitorder="little")
            scores[row, bits[: scores.shape[1]] == 0] = -np.inf
        scores[row, batch.forbidden_ids[batch.forbidden_start[row] : batch.forbidden_start[row + 1]]] = -np.inf
        biases = slice(batch.bias_start[row], batch.bias_start[row + 1])
        scores[row, batch.bias_ids[biases]] += batch.bias_values[biases]
    best = np.argmax(scores, axis=1).astype(np.int32)
    unusable = np.isnan(scores).any(axis=1) | np.isneginf(scores.max(axis=1))
    given = batch.given_token_ids
    tokens = np.where(given != NO_TOKEN, given, np.where(unusable, NO_TOKEN, best)).astype(np.int32)
    num_failed = int(np.count_nonzero(tokens == NO_TOKEN))
    count = int(batch.num_logprobs.max(initial=NO_LOGPROBS))
    if count == NO_LOGPROBS:
        return SampledBatch(tokens, num_failed)
    top = np.max(logits, axis=1, keepdims=True)
    logprobs = logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
    order = np.argsort(-logprobs, axis=1, kind="stable")[:, :count]
    ids = np.concatenate([tokens[:, None], order], axis=1).astype(np.int32)
    values = np.take_along_axis(logprobs, np.maximum(ids, 0), axis=1)
    ranks = 1 + (logprobs > values[:, :1]).sum(axis=1, dtype=np.int32)
    return SampledBatch(tokens, num_failed, ids, values, ranks.astype(np.int32))
