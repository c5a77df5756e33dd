"""A first run of a model on two tokens: what its layers ask of attention, against what the plan has reserved."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import torch

from appliance.kernels.errors import BindError
from appliance.kernels.modelling.attention import LISTENER, AttentionCall
from appliance.program.caches import KvShape

NUM_TOKENS = 2
_POSITIONS = 16  # queries whose mask is looked at, over the whole context
_SHOWN = 4  # complaints in one error
# What layers hand on that changes nothing here.
_HARMLESS = frozenset(
    {
        *("dropout", "is_causal", "position_ids", "position_embeddings", "cache_position", "use_cache"),
        *("output_attentions", "output_hidden_states", "output_router_logits", "return_dict", "logits_to_keep"),
    }
)


class Asked(NamedTuple):
    """What one layer asked for. visible: its mask, None if it brings none."""

    shape: KvShape
    visible: Callable[..., torch.Tensor] | None
    problem: str


class Probe:
    """Notes every call; attention is then nothing but zeros."""

    def __init__(self) -> None:
        self.asked: dict[int, Asked] = {}
        self._masks: list[tuple[torch.Tensor, Callable[..., torch.Tensor]]] = []

    def mask(self, visible: Callable[..., torch.Tensor]) -> torch.Tensor:
        marker = torch.zeros(1, 1, NUM_TOKENS, NUM_TOKENS)
        self._masks.append((marker, visible))
        return marker

    def attend(self, call: AttentionCall) -> torch.Tensor:
        known = [visible for marker, visible in self._masks if marker is call.mask]
        problem = "is called twice in a step" if call.layer in self.asked else _problem(call, bool(known))
        shape = KvShape(call.k.shape[1], call.k.shape[2], call.v.shape[2], call.window)
        self.asked[call.layer] = Asked(shape, known[0] if known else None, problem)
        return call.q.new_zeros(*call.q.shape[:2], call.v.shape[-1])


def check_model(
    forward: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    caches: Sequence[KvShape],
    vocab_size: int,
    max_model_len: int,
) -> None:
    """Runs `forward` (token ids [1, T], positions [1, T], rows [R] -> logits [R, V]) once, and compares.

    Raises BindError, naming the layers, if some do not use our attention, or use it otherwise than planned.
    """
    probe = Probe()
    context = LISTENER.set(probe)
    tokens, positions = torch.zeros(1, NUM_TOKENS, dtype=torch.long), torch.arange(NUM_TOKENS)
    try:
        logits = forward(tokens, positions[None], positions[-1:])
    except Exception as error:  # the code of a model may raise anything
        raise BindError(f"a first run of its modelling code failed: {type(error).__name__}: {error}") from error
    finally:
        LISTENER.reset(context)
    problems = list(_problems(probe, caches, max_model_len))
    if logits.shape[-1] != vocab_size:
        problems.append(f"it gives {logits.shape[-1]:,} logits, and the config has a vocabulary of {vocab_size:,}")
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise BindError(f"its modelling code cannot run over our cache: {'; '.join(problems[:_SHOWN])}{more}")


def _problem(call: AttentionCall, is_known_mask: bool) -> str:
    """Returns what a layer asks for that our attention does not do; empty if nothing."""
    if call.mask is not None and not is_known_mask:
        return "makes a mask of its own"
    if call.others.get("is_causal") is False:
        return "sees tokens that come later"
    more = [name for name, value in call.others.items() if name not in _HARMLESS and _is_set(value)]
    return f"asks for {', '.join(sorted(more))}" if more else ""


def _is_set(value: object) -> bool:
    return value is not None and value is not False


def _problems(probe: Probe, caches: Sequence[KvShape], max_model_len: int) -> Iterator[str]:
    unknown = sorted(layer for layer in probe.asked if not 0 <= layer < len(caches))
    if unknown:
        yield f"attention is called for layers {', '.join(map(str, unknown))}, and the config has {len(caches)}"
    for layer, planned in enumerate(caches):
        asked = probe.asked.get(layer)
        if asked is None:
            yield f"layer {layer} does not call the attention interface"
        elif asked.problem:
            yield f"layer {layer} {asked.problem}"
        elif _sizes(asked.shape) != _sizes(planned):
            yield f"layer {layer} has {_said(asked.shape)}, and {_said(planned)} are planned by its config"
        elif not _sees_as_planned(asked, planned, max_model_len):
            reach = "all tokens before it" if planned.window is None else f"the last {planned.window} tokens"
            yield f"layer {layer} does not see {reach}, as its config says"


def _sizes(shape: KvShape) -> tuple[int, int, int]:
    return shape.num_kv_heads, shape.key_dim, shape.value_dim


def _said(shape: KvShape) -> str:
    values = "" if shape.value_dim == shape.key_dim else f" with values of {shape.value_dim}"
    return f"{shape.num_kv_heads} KV heads of {shape.key_dim}{values}"


def _sees_as_planned(asked: Asked, planned: KvShape, max_model_len: int) -> bool:
    """Returns whether the layer's mask, or where it has none its window, is the planned one for every position."""
    if asked.visible is None:
        reach = asked.shape.window
        return reach == planned.window or (planned.window is None and reach is not None and reach >= max_model_len)
    near = [] if planned.window is None else [planned.window - 1, planned.window, planned.window + 1]
    spread = [max_model_len * step // _POSITIONS for step in range(_POSITIONS)]
    chosen = sorted({at for at in (*spread, *near, max_model_len - 1) if 0 <= at < max_model_len})
    query, key = torch.tensor(chosen)[:, None], torch.arange(max_model_len)[None, :]
    expected = key <= query
    if planned.window is not None:
        expected = expected & (key > query - planned.window)
    zero = torch.zeros(1, 1, dtype=torch.long)
    with suppress(IndexError, RuntimeError, ValueError):  # such a mask depends on more than positions
        return bool((asked.visible(zero, zero, query, key).expand_as(expected) == expected).all())
    return False
