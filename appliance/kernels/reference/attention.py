"""Paged attention in plain steps: gather a sequence's keys and values, mask, softmax."""

from dataclasses import dataclass

import torch

from appliance.kernels.reference.kv_codes import to_codes, turned
from appliance.program.operators import PagedAttention, WholeAttention


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The cache of one layer. keys, values: [num_blocks, block_size, G, d] in the cache's dtype.

    values may be a view of the keys' first columns. key_scales, value_scales: f32 [num_blocks, block_size, G] if keys
    and values are codes of 8 bits; else None. Keys of int8 are turned (kv_codes.py).
    """

    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None

    def write(self, slot_mapping: torch.Tensor, k: torch.Tensor, v: torch.Tensor | None) -> None:
        """Stores k, v [T, G, d] at the slots [T]; a negative slot stores nothing. v: None if values are part of k."""
        live = slot_mapping >= 0
        slots, block_size = slot_mapping[live].long(), self.keys.shape[1]
        place = slots // block_size, slots % block_size
        for cache, scales, new in ((self.keys, self.key_scales, k), (self.values, self.value_scales, v)):
            if new is None:
                continue
            if scales is None:
                cache[place] = new[live].to(cache.dtype)
                continue
            numbers = new[live].float()
            codes, scales[place] = to_codes(turned(numbers) if new is k and self._is_turned else numbers, cache.dtype)
            cache.view(torch.uint8)[place] = codes.view(torch.uint8)

    def gather(self, block_table: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the keys and values f32 [length, G, d] of one sequence."""
        block_size = self.keys.shape[1]
        blocks = block_table[: (length + block_size - 1) // block_size].long()
        keys, values = (
            _numbers(cache, scales, blocks).flatten(0, 1)[:length]
            for cache, scales in ((self.keys, self.key_scales), (self.values, self.value_scales))
        )
        return turned(keys) if self._is_turned else keys, values

    @property
    def _is_turned(self) -> bool:
        return self.keys.dtype == torch.int8


def _numbers(cache: torch.Tensor, scales: torch.Tensor | None, blocks: torch.Tensor) -> torch.Tensor:
    """Returns f32 [blocks, block_size, G, d]."""
    if scales is None:
        return cache[blocks].float()
    codes = cache.view(torch.uint8)[blocks].view(cache.dtype)
    return codes.float() * scales[blocks].unsqueeze(-1)


def attend(
    op: PagedAttention, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, sinks: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns [n, H, e]. q f32 [n, H, d]: the queries of the last n tokens; keys, values: f32 [length, G, d or e].
    sinks: f32 [H]."""
    group = op.num_heads // op.num_kv_heads
    keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, keys) * op.scale
    if op.soft_cap is not None:
        scores = op.soft_cap * torch.tanh(scores / op.soft_cap)
    query_position = torch.arange(keys.shape[0] - q.shape[0], keys.shape[0])[:, None]
    key_position = torch.arange(keys.shape[0])[None, :]
    if op.slopes is not None:
        scores = scores + torch.tensor(op.slopes)[:, None, None] * (key_position - query_position)
    visible = key_position <= query_position
    if op.window is not None:
        visible &= key_position > query_position - op.window
    if op.chunk is not None:
        visible &= key_position >= query_position // op.chunk * op.chunk
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is None:
        return torch.einsum("hqk,khd->qhd", torch.softmax(scores, dim=-1), values)
    with_sinks = torch.cat((scores, sinks[:, None, None].expand(-1, q.shape[0], 1)), dim=-1)
    return torch.einsum("hqk,khd->qhd", torch.softmax(with_sinks, dim=-1)[..., :-1], values)


def attend_whole(
    op: WholeAttention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Returns [n, H * d] for a whole sequence. q: f32 [n, H * d]; k, v: f32 [n, G * d]; bias: [H, 2 * reach - 1]."""
    length, group = q.shape[0], op.num_heads // op.num_kv_heads
    queries = q.reshape(length, op.num_heads, op.head_dim)
    keys, values = (x.reshape(length, -1, op.head_dim).repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", queries, keys) * op.scale
    ahead = torch.arange(length)[None, :] - torch.arange(length)[:, None]
    if bias is not None:
        scores += bias[:, ahead + (bias.shape[1] + 1) // 2 - 1]
    hidden = torch.zeros_like(ahead, dtype=torch.bool)
    if op.before is not None:
        hidden |= ahead < -op.before
    if op.after is not None:
        hidden |= ahead > op.after
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values).flatten(1)
