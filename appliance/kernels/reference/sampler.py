"""The sampler in plain numpy: the oracle of the native one."""

import numpy as np
import numpy.typing as npt

from appliance.kernels.logits import HostLogits
from appliance.kernels.sampling import NO_LOGPROBS, NO_MASK, NO_TOKEN, SampledBatch, SamplingBatch

Row = npt.NDArray[np.float32]


class ReferenceSampler:
    def sample(self, logits: HostLogits, batch: SamplingBatch) -> SampledBatch:
        num_rows = batch.num_rows
        result = SampledBatch(np.full(num_rows, NO_TOKEN, np.int32), 0)
        widest = int(batch.num_logprobs.max(initial=NO_LOGPROBS))
        if widest != NO_LOGPROBS:
            result.logprob_ids = np.full((num_rows, widest + 1), NO_TOKEN, np.int32)
            result.logprobs = np.full((num_rows, widest + 1), -np.inf, np.float32)
            result.ranks = np.zeros(num_rows, np.int32)
        for row in range(num_rows):
            _sample_row(logits.row(row), batch, row, result)
        result.num_failed = int(np.count_nonzero(result.token_ids == NO_TOKEN))
        return result


def _sample_row(raw: Row, batch: SamplingBatch, row: int, result: SampledBatch) -> None:
    if np.isnan(raw).any():
        return
    adjusted = _apply_penalties(_apply_constraints(raw, batch, row), batch, row)
    given = int(batch.given_token_ids[row])
    kept = adjusted
    if batch.temperature[row] > 0:
        kept = _filter(adjusted / batch.temperature[row], batch, row)
    if given == NO_TOKEN and not np.isfinite(kept).any():
        return
    if given != NO_TOKEN:
        token = given
    elif batch.temperature[row] > 0:
        token = _draw(kept, philox_uniform(int(batch.seed[row]), int(batch.position[row])))
    else:
        token = int(np.argmax(kept))
    result.token_ids[row] = token
    if batch.num_logprobs[row] != NO_LOGPROBS:
        source = raw if batch.logprobs_mode.startswith("raw") else kept
        values = log_softmax(source) if batch.logprobs_mode.endswith("logprobs") else source
        _write_logprobs(values, source, token, int(batch.num_logprobs[row]), row, result)


def _apply_constraints(raw: Row, batch: SamplingBatch, row: int) -> Row:
    logits = raw.copy()
    if batch.mask_row[row] != NO_MASK:
        words = batch.mask_bits[batch.mask_row[row]]
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: logits.size]
        logits[bits == 0] = -np.inf
    forbidden = slice(batch.forbidden_start[row], batch.forbidden_start[row + 1])
    logits[batch.forbidden_ids[forbidden]] = -np.inf
    biased = slice(batch.bias_start[row], batch.bias_start[row + 1])
    np.add.at(logits, batch.bias_ids[biased], batch.bias_values[biased])
    return logits


def _apply_penalties(logits: Row, batch: SamplingBatch, row: int) -> Row:
    tokens = batch.token_table[batch.token_row[row], : batch.num_tokens[row]]
    seen = np.unique(tokens[tokens != NO_TOKEN])
    if batch.repetition_penalty[row] != 1:
        values, penalty = logits[seen], batch.repetition_penalty[row]
        logits[seen] = np.where(values > 0, values / penalty, values * penalty)
    counts = np.bincount(tokens[batch.num_prompt_tokens[row] :], minlength=logits.size).astype(np.float32)
    logits -= counts * batch.frequency_penalty[row]
    logits -= (counts > 0) * batch.presence_penalty[row]
    return logits


def _filter(scaled: Row, batch: SamplingBatch, row: int) -> Row:
    """Sets the logits that min_p, top_k and top_p drop to -inf."""
    order = np.lexsort((np.arange(scaled.size), -scaled))
    keep = int(np.isfinite(scaled).sum())
    if batch.min_p[row] > 0 and keep:
        keep = int((scaled >= scaled[order[0]] + np.log(batch.min_p[row])).sum())
    if batch.top_k[row] > 0:
        keep = min(keep, int(batch.top_k[row]))
    if batch.top_p[row] < 1 and keep:
        mass = np.exp(scaled[order[:keep]].astype(np.float64) - scaled[order[0]]).cumsum()
        keep = min(keep, int(np.searchsorted(mass, float(batch.top_p[row]) * mass[-1])) + 1)
    kept = np.full_like(scaled, -np.inf)
    kept[order[:keep]] = scaled[order[:keep]]
    return kept


def _draw(kept: Row, uniform: float) -> int:
    """Draws a token: inverts the cumulative distribution in the order of ids."""
    cumulative = np.exp(kept.astype(np.float64) - kept.max()).cumsum()
    return int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))


def log_softmax(values: Row) -> Row:
    top = values.max()
    if not np.isfinite(top):
        return np.full_like(values, -np.inf)
    total = np.log(np.exp(values.astype(np.float64) - top).sum())
    return np.asarray(values - top - total, np.float32)


def _write_logprobs(values: Row, source: Row, token: int, count: int, row: int, result: SampledBatch) -> None:
    assert result.logprob_ids is not None
    assert result.logprobs is not None
    assert result.ranks is not None
    best = np.lexsort((np.arange(source.size), -source))[:count]
    ids = np.concatenate(([token], best)).astype(np.int32)
    result.logprob_ids[row, : ids.size] = ids
    result.logprobs[row, : ids.size] = values[ids]
    result.ranks[row] = 1 + int((source > source[token]).sum())


def philox_uniform(seed: int, position: int) -> float:
    """Returns a number in [0, 1) from the first two words of Philox4x32-10 (Salmon et al. 2011) with key `seed` and
    counter `position`."""
    mask = 0xFFFFFFFF
    key = [seed & mask, seed >> 32]
    counter = [position & mask, position >> 32, 0, 0]
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (second >> 32) ^ counter[1] ^ key[0],
            second & mask,
            (first >> 32) ^ counter[3] ^ key[1],
            first & mask,
        ]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return float((counter[0] << 21) | (counter[1] >> 11)) * 2.0**-53
