"""Sampling on the device: tokens stay there for the next step, and one small copy brings them to the host."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from appliance.kernels.gpu.checks import check_sampling, penalized_rows
from appliance.kernels.gpu.device import Device, DeviceEvent, GraphMemory, Replay
from appliance.kernels.gpu.draws import DrawKind, Draws
from appliance.kernels.gpu.failures import says_failures
from appliance.kernels.gpu.sampler import NOT_NUMBERS, leave_out, not_numbers, sample
from appliance.kernels.sampling import NO_LOGPROBS, NO_MASK, NO_TOKEN, SampledBatch, SamplingBatch

LEAST_DRAWS = 4  # of a kind, before it is captured


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """What was given to the device to sample. token_ids: int32 [R] on the host; logprobs: ids, values and ranks as in
    SampledBatch; both hold numbers once the event has passed."""

    batch: SamplingBatch
    token_ids: torch.Tensor
    logprobs: Sequence[torch.Tensor] | None
    copied: DeviceEvent

    @says_failures
    def result(self) -> SampledBatch:
        """Waits for the tokens, and for nothing that was given to the device after them."""
        self.copied.wait()
        token_ids = self.token_ids.numpy()
        failed = int(np.count_nonzero(token_ids < 0))
        is_nan = token_ids == NOT_NUMBERS if failed else None
        found = SampledBatch(np.maximum(token_ids, NO_TOKEN) if failed else token_ids, failed, is_nan=is_nan)
        if self.logprobs is not None:
            found.logprob_ids, found.logprobs, found.ranks = (part.numpy() for part in self.logprobs)
            leave_out(found, self.batch)
        return found


class DeviceSampler:
    """Samples the logits of one executable. draws: None where torch filters and draws."""

    def __init__(self, max_rows: int, device: Device, draws: Draws | None, graphs: GraphMemory | None) -> None:
        """graphs: where plain draws are captured, a graph for each number of rows; None if none are."""
        self._device, self._draws, self._graphs = device, draws, graphs
        self.tokens = device.zeros(max_rows, dtype=torch.int32)
        self._host = device.staging(4 * max_rows).view(torch.int32)
        self._copied = device.event()
        self._replays: dict[DrawKind, Replay] = {}
        self._steps: Counter[DrawKind] = Counter()

    @property
    def size_bytes(self) -> int:
        return self.tokens.nbytes

    def begin(self, logits: torch.Tensor, batch: SamplingBatch, *, is_in_place: bool = True) -> DeviceSample:
        """Gives the sampling of logits f32 [R, V] to the device, and does not wait. Raises StepError for what is out
        of bounds.

        is_in_place: the logits lie where those of every step of as many rows lie, so that a graph finds them.
        """
        check_sampling(batch, logits.shape[1])
        found = None
        if self._draws is not None and _is_plain(batch):
            self._draw(self._draws, logits, batch, self._graphs if is_in_place else None)
        else:
            sampled = sample(logits, batch, self._device, None if self._draws is None else self._draws.draw)
            self.tokens[: batch.num_rows].copy_(sampled.token_ids)
            found = None if sampled.logprobs is None else [self._device.download(part) for part in sampled.logprobs]
        host = self._host[: batch.num_rows]
        host.copy_(self.tokens[: batch.num_rows], non_blocking=True)
        self._copied.record()
        return DeviceSample(batch, host, found, self._copied)

    def feed(self, token_ids: torch.Tensor) -> None:
        """Writes the tokens sampled last to token_ids int32 [n], in their order. Where there was none, it writes some
        token: that step will not count."""
        torch.clamp(self.tokens[: len(token_ids)], min=0, out=token_ids)

    def _draw(self, draws: Draws, logits: torch.Tensor, batch: SamplingBatch, graphs: GraphMemory | None) -> None:
        """Draws from the logits as they are."""
        kind = draws.load(batch)
        replay = self._replays.get(kind)
        if replay is not None and graphs is not None:
            replay()
            return
        self._draw_plainly(draws, logits, kind)
        self._steps[kind] += graphs is not None
        if graphs is not None and self._steps[kind] >= LEAST_DRAWS:
            self._replays[kind] = graphs.capture(lambda: self._draw_plainly(draws, logits, kind))

    def _draw_plainly(self, draws: Draws, logits: torch.Tensor, kind: DrawKind) -> None:
        tokens = self.tokens[: kind.num_rows]
        draws.run(logits, kind, tokens)
        tokens.masked_fill_(not_numbers(logits), NOT_NUMBERS)


def _is_plain(batch: SamplingBatch) -> bool:
    """Returns whether tokens are drawn from the logits as they are, and nothing else is asked of them."""
    return not (
        (batch.mask_row != NO_MASK).any()
        or len(batch.forbidden_ids)
        or len(batch.bias_ids)
        or (batch.given_token_ids != NO_TOKEN).any()
        or (batch.num_logprobs != NO_LOGPROBS).any()
        or penalized_rows(batch)
    )
