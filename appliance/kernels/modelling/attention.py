"""Attention of modelling code over the paged cache: one call a layer, with all tokens of a step.

Shapes: T tokens of the step, n of one sequence in it, L its tokens in the cache; H query heads, G KV heads; d, e the
widths of keys and values.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn import functional

from appliance.kernels.interface import StepInputs
from appliance.kernels.reference.attention import LayerCache

NAME = "appliance"  # in transformers' registries of attention functions and of masks
SCORES_BYTES = 1 << 25  # of the f32 scores that are kept at a time; queries beyond that wait
MOST_QUERIES = 512  # that attend at a time, which bounds their mask


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What an attention layer hands over. q: [T, H, d]; k: [T, G, d]; v: [T, G, e]. sinks: [H]. window, mask, others:
    what the layer says besides, which is checked once (kernels.modelling.probe) and then known."""

    layer: int
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float
    soft_cap: float | None
    sinks: torch.Tensor | None
    window: int | None
    mask: torch.Tensor | None
    others: dict[str, Any]


class Listener(Protocol):
    """Who answers the calls of the model that runs in this context."""

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Returns [T, H, e] in the dtype of q."""

    def mask(self, visible: Callable[..., torch.Tensor]) -> torch.Tensor | None:
        """Returns what layers get as their mask. visible(batch, head, query, key): whether a query sees a key."""


LISTENER: ContextVar[Listener] = ContextVar("attention listener")


def answer(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls. query: [1, H, T, d]; key, value: [1, G, T, d or e]."""
    call = AttentionCall(
        layer=getattr(module, "layer_idx", -1),
        q=query[0].transpose(0, 1),
        k=key[0].transpose(0, 1),
        v=value[0].transpose(0, 1),
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        soft_cap=softcap,
        sinks=s_aux,
        window=sliding_window,
        mask=attention_mask,
        others={"is_causal": getattr(module, "is_causal", None)} | others,
    )
    return LISTENER.get().attend(call)[None], None


def make_mask(*, mask_function: Callable[..., torch.Tensor], **_: Any) -> torch.Tensor | None:
    """The mask function that transformers calls."""
    return LISTENER.get().mask(mask_function)


@dataclass(frozen=True, slots=True)
class PagedLayer:
    """One attention layer: its cache, the group whose block tables it has, and how many latest tokens it sees."""

    cache: LayerCache
    group: int
    window: int | None


class PagedStep:
    """Answers the calls of one step."""

    def __init__(self, layers: list[PagedLayer], inputs: StepInputs) -> None:
        self._layers = layers
        self._slots = torch.from_numpy(inputs.slot_mapping)
        self._tables = torch.from_numpy(inputs.block_tables).long()
        self._starts = inputs.query_start.tolist()
        self._lengths = inputs.seq_lens.tolist()

    def mask(self, visible: Callable[..., torch.Tensor]) -> torch.Tensor | None:
        return None

    def attend(self, call: AttentionCall) -> torch.Tensor:
        layer = self._layers[call.layer]
        layer.cache.write(self._slots[layer.group], call.k, call.v)
        out = call.q.new_empty(*call.q.shape[:2], call.v.shape[-1])
        for sequence, length in enumerate(self._lengths):
            rows = slice(self._starts[sequence], self._starts[sequence + 1])
            if rows.stop > rows.start:
                out[rows] = _attend(call, call.q[rows], layer, self._tables[layer.group, sequence], length)
        return out


def _attend(call: AttentionCall, q: torch.Tensor, layer: PagedLayer, table: torch.Tensor, length: int) -> torch.Tensor:
    """Returns [n, H, e] for the queries of a sequence's last n tokens."""
    rows = max(1, min(MOST_QUERIES, SCORES_BYTES // (4 * q.shape[1] * length)))
    parts = []
    for start in range(0, len(q), rows):
        part = q[start : start + rows]
        first = length - len(q) + start  # the position of its first query
        oldest = 0 if layer.window is None else max(0, first - layer.window + 1)
        keys, values = _gather(layer.cache, table, oldest, first + len(part), q.dtype)
        visible = _visible(len(part), len(keys), first - oldest, layer.window)
        plain = call.soft_cap is None and call.sinks is None
        parts.append((_fused if plain else _by_steps)(call, part, keys, values, visible))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _gather(
    cache: LayerCache, table: torch.Tensor, start: int, stop: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the keys and values [stop - start, G, d or e] of a sequence; blocks that a window left are not read."""
    size = cache.keys.shape[1]
    first = start // size
    blocks = table[first : -(-stop // size)]
    here = slice(start - first * size, stop - first * size)
    keys, values = (lane[blocks].flatten(0, 1)[here].to(dtype) for lane in (cache.keys, cache.values))
    return keys, values


def _visible(num_queries: int, num_keys: int, first: int, window: int | None) -> torch.Tensor | None:
    """Returns bool [n, L], with the first query at key `first`; None if every query sees every key."""
    if num_queries == 1:
        return None
    query, key = torch.arange(first, first + num_queries)[:, None], torch.arange(num_keys)[None, :]
    visible = key <= query
    return visible if window is None else visible & (key > query - window)


def _fused(
    call: AttentionCall, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor | None
) -> torch.Tensor:
    query, key, value = (x.transpose(0, 1)[None] for x in (q, keys, values))
    out = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=visible, scale=call.scale, enable_gqa=True
    )
    return out[0].transpose(0, 1)


def _by_steps(
    call: AttentionCall, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor | None
) -> torch.Tensor:
    """Attention with a soft cap or sinks: scores are f32, and the sums as modelling code makes them."""
    group = q.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, keys).float() * call.scale
    if call.soft_cap is not None:
        scores = call.soft_cap * torch.tanh(scores / call.soft_cap)
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    if call.sinks is not None:
        scores = torch.cat((scores, call.sinks.float()[:, None, None].expand(-1, len(q), 1)), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : len(keys)].to(values.dtype)
    return torch.einsum("hqk,khd->qhd", weights, values)
