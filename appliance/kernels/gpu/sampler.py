"""The sampler on the device. The order of processing and every draw are those of the reference sampler.

All rows are computed together. A filter or penalty that no row has is left out, so that greedy rows cost one pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from appliance.kernels.gpu.checks import penalized_rows
from appliance.kernels.gpu.device import Device
from appliance.kernels.gpu.philox import uniforms
from appliance.kernels.sampling import NO_LOGPROBS, NO_MASK, NO_TOKEN, SampledBatch, SamplingBatch
from appliance.program.device_memory import LOGPROB_ROWS

NOT_NUMBERS = NO_TOKEN - 1  # in Sampled.token_ids, where a logit is NaN
_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Sampled:
    """The result on the device: token ids int32 [R]; ids, values and ranks of log-probabilities as in SampledBatch,
    but also for what rows did not ask for."""

    token_ids: torch.Tensor
    logprobs: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None


Draw = Callable[[torch.Tensor, SamplingBatch], torch.Tensor]


def sample(raw: torch.Tensor, batch: SamplingBatch, device: Device, draw: Draw | None = None) -> Sampled:
    """Samples rows of logits f32 [R, V] without changing them. Nothing waits for the device.

    draw: filters and draws, and returns int [R], from logits after masks, biases and penalties; torch does this if it
    is None, or if log-probabilities of the filtered logits are wanted.
    """
    adjusted = _penalized(_constrained(raw, batch, device), batch, device)
    wants_kept = batch.logprobs_mode.startswith("processed") and bool((batch.num_logprobs != NO_LOGPROBS).any())
    if draw is None or wants_kept:
        kept = _kept(adjusted, batch, device)
        tokens = _chosen(kept, batch, device)
    else:
        kept, tokens = adjusted, draw(adjusted, batch)
    given = batch.given_token_ids
    if (given != NO_TOKEN).any():
        wanted = device.upload(given)
        tokens = torch.where(wanted != NO_TOKEN, wanted, tokens)
    tokens = torch.where(not_numbers(raw), NOT_NUMBERS, tokens).int()
    return Sampled(tokens, _logprobs(raw, kept, tokens, batch))


def not_numbers(logits: torch.Tensor) -> torch.Tensor:
    """Returns bool [R], where a row has a logit that is no number."""
    return logits.isnan().any(-1)


def _constrained(raw: torch.Tensor, batch: SamplingBatch, device: Device) -> torch.Tensor:
    """Applies the allowed masks, the forbidden ids and the biases."""
    logits = raw
    if (batch.mask_row != NO_MASK).any():
        logits = logits.masked_fill(~_allowed(batch, raw.shape[1], device), _NEVER)
    if len(batch.forbidden_ids):
        rows, ids = _scattered(batch.forbidden_start, batch.forbidden_ids, device)
        logits = logits.index_put((rows, ids), logits.new_full((), _NEVER))
    if len(batch.bias_ids):
        rows, ids = _scattered(batch.bias_start, batch.bias_ids, device)
        logits = logits.index_put((rows, ids), device.upload(batch.bias_values), accumulate=True)
    return logits


def _allowed(batch: SamplingBatch, width: int, device: Device) -> torch.Tensor:
    """Returns bool [R, V]; rows without a mask may say everything."""
    used, places = np.unique(batch.mask_row, return_inverse=True)
    words = batch.mask_bits[np.maximum(used, 0)].view(np.int32)
    words = np.where((used == NO_MASK)[:, None], np.int32(-1), words)
    bits = device.upload(words)[:, :, None] >> torch.arange(32, dtype=torch.int32, device=device.name) & 1
    return bits.flatten(1)[:, :width].bool()[device.upload(places.astype(np.int32))]


def _scattered(start: np.ndarray, ids: np.ndarray, device: Device) -> tuple[torch.Tensor, torch.Tensor]:
    rows = np.repeat(np.arange(len(start) - 1), np.diff(start))
    return device.upload(rows), device.upload(ids.astype(np.int64))


def _penalized(logits: torch.Tensor, batch: SamplingBatch, device: Device) -> torch.Tensor:
    penalized = penalized_rows(batch)
    if not penalized:
        return logits
    rows, ids, counts = _seen(batch, penalized)
    at = (device.upload(rows), device.upload(ids))
    values, penalty = logits[at], device.upload(batch.repetition_penalty)[at[0]]
    lowered = torch.where(values > 0, values / penalty, values * penalty)
    values = torch.where(penalty == 1, values, lowered)
    output = device.upload(counts)
    values = values - output * device.upload(batch.frequency_penalty)[at[0]]
    values = values - (output > 0) * device.upload(batch.presence_penalty)[at[0]]
    return logits.index_put(at, values)


def _seen(batch: SamplingBatch, penalized: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns rows, ids and how often an id is in the row's output f32, for each id that a row with penalties has."""
    parts = []
    for row in penalized:
        tokens = batch.token_table[batch.token_row[row], : batch.num_tokens[row]]
        num_output = len(tokens) - batch.num_prompt_tokens[row]
        ids, inverse = np.unique(tokens[tokens != NO_TOKEN], return_inverse=True)
        output = inverse[len(inverse) - num_output :]
        counts = np.bincount(output, minlength=len(ids)).astype(np.float32)
        parts.append((np.full(len(ids), row), ids.astype(np.int64), counts))
    rows, ids, counts = (np.concatenate(each) for each in zip(*parts, strict=True))
    return rows, ids, counts


def _kept(adjusted: torch.Tensor, batch: SamplingBatch, device: Device) -> torch.Tensor:
    """Divides the rows that are drawn by their temperature, and sets to -inf what min_p, top_k and top_p drop."""
    drawn = batch.temperature > 0
    if not drawn.any():
        return adjusted
    temperature = device.upload(np.where(drawn, batch.temperature, np.float32(1)))[:, None]
    scaled = torch.where(device.upload(drawn)[:, None], adjusted / temperature, adjusted)
    filters = drawn & ((batch.min_p > 0) | (batch.top_k > 0) | (batch.top_p < 1))
    rows = np.flatnonzero(filters)
    if len(rows) == 0:
        return scaled
    at = device.upload(rows)
    return scaled.index_copy(0, at, _filtered(scaled[at], batch, rows, device))


def _filtered(scaled: torch.Tensor, batch: SamplingBatch, rows: np.ndarray, device: Device) -> torch.Tensor:
    """A filter keeps the first tokens in the order of falling logits; of equal ones the lower id comes first."""
    ordered, order = torch.sort(scaled, dim=-1, descending=True, stable=True)
    keep = torch.isfinite(scaled).sum(-1)
    min_p, top_k, top_p = (device.upload(column[rows]) for column in (batch.min_p, batch.top_k, batch.top_p))
    least = ordered[:, 0] + torch.log(min_p)
    keep = torch.where(min_p > 0, (scaled >= least[:, None]).sum(-1), keep)
    keep = torch.where(top_k > 0, torch.minimum(keep, top_k.long()), keep)
    places = torch.arange(scaled.shape[1], device=scaled.device)
    mass = torch.exp(ordered.double() - ordered[:, :1].double()).masked_fill(places >= keep[:, None], 0.0).cumsum(-1)
    wanted = top_p.double()[:, None] * mass[:, -1:]
    nucleus = torch.searchsorted(mass, wanted)[:, 0] + 1
    keep = torch.where((top_p < 1) & (keep > 0), torch.minimum(keep, nucleus), keep)
    dropped = torch.zeros_like(scaled, dtype=torch.bool).scatter_(1, order, places >= keep[:, None])
    return scaled.masked_fill(dropped, _NEVER)


def _chosen(kept: torch.Tensor, batch: SamplingBatch, device: Device) -> torch.Tensor:
    """Returns int64 [R]: the largest logit of greedy rows (the lowest id of equal ones), and a draw of the others;
    NO_TOKEN where every token is forbidden."""
    top = kept.max(-1, keepdim=True).values
    greedy = (kept == top).int().argmax(-1)
    drawn = batch.temperature > 0
    if drawn.any():
        numbers = device.upload(uniforms(batch.seed, batch.position))
        cumulative = torch.exp(kept.double() - top.double()).cumsum(-1)
        place = torch.searchsorted(cumulative, (numbers[:, None] * cumulative[:, -1:]), right=True)[:, 0]
        greedy = torch.where(device.upload(drawn), place, greedy)
    return torch.where(torch.isfinite(top[:, 0]), greedy, NO_TOKEN)


def _logprobs(
    raw: torch.Tensor, kept: torch.Tensor, tokens: torch.Tensor, batch: SamplingBatch
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Returns ids int32 [R, 1 + K], values f32 [R, 1 + K] and ranks int32 [R]; None if no row wants any.

    A few rows at a time: it takes many times the memory of their logits.
    """
    widest = int(batch.num_logprobs.max(initial=NO_LOGPROBS))
    if widest == NO_LOGPROBS:
        return None
    source = raw if batch.logprobs_mode.startswith("raw") else kept
    some = [slice(start, start + LOGPROB_ROWS) for start in range(0, len(source), LOGPROB_ROWS)]
    found = [_best(source[rows], tokens[rows], widest, batch.logprobs_mode) for rows in some]
    ids, values, ranks = (torch.cat(parts) for parts in zip(*found, strict=True))
    return ids, values, ranks


def _best(
    source: torch.Tensor, tokens: torch.Tensor, widest: int, mode: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns what `_logprobs` does, of the chosen tokens and of the `widest` best."""
    values = torch.log_softmax(source.double(), -1).float() if mode.endswith("logprobs") else source
    chosen = tokens.clamp(min=0).long()[:, None]
    best = torch.sort(source, dim=-1, descending=True, stable=True).indices[:, :widest]
    ids = torch.cat((chosen, best), dim=1)
    ranks = 1 + (source > source.gather(1, chosen)).sum(-1)
    return ids.int(), values.gather(1, ids), ranks.int()


def leave_out(result: SampledBatch, batch: SamplingBatch) -> None:
    """Takes away what a row did not ask for, and all of rows that failed."""
    assert result.logprob_ids is not None
    assert result.logprobs is not None
    assert result.ranks is not None
    wanted = np.where(result.token_ids == NO_TOKEN, NO_LOGPROBS, batch.num_logprobs)
    beyond = np.arange(result.logprob_ids.shape[1]) > wanted[:, None]
    result.logprob_ids[beyond], result.logprobs[beyond] = NO_TOKEN, -np.inf
    result.ranks[wanted == NO_LOGPROBS] = 0
