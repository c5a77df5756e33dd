"""Turns a step's samples into the log-probabilities and errors that the scheduler gets."""

from dataclasses import dataclass, field

import numpy as np

from appliance.engine.faults import row_fault
from appliance.engine.inputs import LogitRows
from appliance.engine.messages import ErrorKind, TokenLogprobs
from appliance.engine.step import RowError
from appliance.kernels.logits import Logits
from appliance.kernels.sampling import NO_LOGPROBS, SampledBatch, SamplingBatch


@dataclass(slots=True)
class RowLogprobs:
    """The log-probabilities by row: of the sampled tokens, and of the prompt's tokens."""

    sampled: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    prompt: dict[int, list[TokenLogprobs]] = field(default_factory=dict)


def row_logprobs(
    wanted: LogitRows,
    batch: SamplingBatch,
    sampled: SampledBatch,
    num_said: dict[int, int],
    errors: dict[int, RowError],
) -> RowLogprobs:
    """Returns log-probabilities by row; a row whose log-probabilities cannot be read is added to `errors`.

    num_said: of each row, how many tokens it said; of drafts that come after these, nothing is returned.
    """
    found = RowLogprobs()
    if sampled.logprobs is None:
        return found
    for at in np.flatnonzero(batch.num_logprobs != NO_LOGPROBS).tolist():
        row = int(wanted.rows[at])
        if wanted.ahead is not None and at < wanted.num_sampled and wanted.ahead[at] >= num_said.get(row, 1):
            continue
        try:
            entry = _token_logprobs(sampled, at, int(batch.num_logprobs[at]))
        except Exception as error:  # noqa: BLE001 - any exception here concerns this row alone
            errors[row] = row_fault("its log-probabilities were read", error)
            continue
        if at < wanted.num_sampled:
            found.sampled.setdefault(row, []).append(entry)
        else:
            found.prompt.setdefault(row, []).append(entry)
    return found


def without_token(wanted: LogitRows, sampled: SampledBatch, logits: Logits) -> dict[int, RowError]:
    """Returns, by row of logits, why no token could be sampled where one should be."""
    if not sampled.num_failed:
        return {}
    missing = np.flatnonzero(sampled.token_ids[: wanted.num_sampled] < 0).tolist()
    known = sampled.is_nan
    return {at: _why_no_token(bool(np.isnan(logits.row(at)).any() if known is None else known[at])) for at in missing}


def _token_logprobs(sampled: SampledBatch, at: int, count: int) -> TokenLogprobs:
    assert sampled.logprobs is not None
    assert sampled.logprob_ids is not None
    assert sampled.ranks is not None
    ids = sampled.logprob_ids[at, : 1 + count]
    return TokenLogprobs(ids.tolist(), sampled.logprobs[at, : 1 + count].tolist(), int(sampled.ranks[at]))


def _why_no_token(is_nan: bool) -> RowError:
    if is_nan:
        return RowError(ErrorKind.INTERNAL, "the model gave logits that are not numbers (NaN) for this sequence")
    limits = "the constraint, allowed_token_ids, logit_bias, bad_words, min_tokens and logits processors"
    return RowError(ErrorKind.INVALID, f"no token may come next: {limits} exclude all")


def pooled_vectors(wanted: LogitRows, pooled: Logits) -> tuple[dict[int, bytes], dict[int, RowError]]:
    """Returns the vectors of each row as f32 bytes, one behind the other; and the rows whose numbers are not finite."""
    parts: dict[int, list[bytes]] = {}
    errors: dict[int, RowError] = {}
    for at, row in enumerate(wanted.rows.tolist()):
        vector = pooled.row(at)
        if not np.isfinite(vector).all():
            errors[row] = RowError(ErrorKind.INTERNAL, "the model's numbers overflowed: its vector is not finite")
        parts.setdefault(row, []).append(vector.astype("<f4", copy=False).tobytes())
    return {row: b"".join(each) for row, each in parts.items()}, errors
