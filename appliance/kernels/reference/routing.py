"""Mixture of experts, spelled out: scores, groups, the largest ones, and each expert over the rows that chose it."""

from collections.abc import Iterator, Mapping

import torch

from appliance.kernels.reference.activations import activate
from appliance.kernels.reference.adapters import AdaptedRows, change_product
from appliance.kernels.reference.weights import quantize_activations
from appliance.program.adapters import AdapterExperts
from appliance.program.routing import ChooseExperts, Experts

Weights = Mapping[str, torch.Tensor]


def choose(
    op: ChooseExperts, logits: torch.Tensor, num_chosen: int, correction: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """logits f32 [T, E] -> experts int64 [T, k], ascending, and their factors f32 [T, k]."""
    scores = _scores(op, logits)
    ranked = scores if correction is None else scores + correction
    ranked = _in_chosen_groups(op, ranked)
    order = torch.sort(ranked, dim=-1, descending=True, stable=True).indices  # stable: ties to the lower index
    experts = order[:, :num_chosen].sort(dim=-1).values
    factors = scores.gather(-1, experts)
    if op.scoring == "sparsemixer":
        factors = _sparse_factors(op, logits, order[:, :num_chosen]).gather(-1, experts)
    if op.scoring == "softmax_of_chosen":
        factors = torch.softmax(factors, dim=-1)
    if op.renormalize:
        factors = factors / factors.sum(-1, keepdim=True)
    return experts, factors * op.scale


def _scores(op: ChooseExperts, logits: torch.Tensor) -> torch.Tensor:
    match op.scoring:
        case "softmax":
            return torch.softmax(logits, dim=-1)
        case "sigmoid":
            return torch.sigmoid(logits)
        case "softmax_of_chosen" | "sparsemixer":
            return logits


def _sparse_factors(op: ChooseExperts, logits: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """chosen int64 [T, k], the largest logit first -> f32 [T, E], the factors of the chosen ones."""
    factors, free = torch.zeros_like(logits), logits.clone()
    for place in chosen.T[:, :, None]:
        most = logits.gather(-1, place)
        is_far = (most - logits) / torch.maximum(logits.abs(), most) > 2 * op.jitter
        near = torch.softmax(free.masked_fill(is_far, float("-inf")), dim=-1)
        factors.scatter_(-1, place, near.gather(-1, place))
        free.scatter_(-1, place, float("-inf"))
    return factors


def _in_chosen_groups(op: ChooseExperts, ranked: torch.Tensor) -> torch.Tensor:
    """Minus infinity for the experts of other groups."""
    if op.num_groups == 1:
        return ranked
    groups = ranked.reshape(len(ranked), op.num_groups, ranked.shape[1] // op.num_groups)
    best = groups.topk(1 if op.group_scoring == "max" else min(2, groups.shape[-1]), dim=-1).values.sum(-1)
    order = torch.sort(best, dim=-1, descending=True, stable=True).indices[:, : op.num_chosen_groups]
    is_chosen = torch.zeros_like(best, dtype=torch.bool).scatter_(-1, order, value=True)
    return groups.masked_fill(~is_chosen[..., None], float("-inf")).flatten(1)


def mixture(
    op: Experts,
    x: torch.Tensor,
    chosen: torch.Tensor,
    factors: torch.Tensor,
    weights: Weights,
    activation_groups: Mapping[str, int],
    adapted: AdaptedRows | None = None,
) -> torch.Tensor:
    """x f32 [T, D] -> f32 [T, D], summed in the order of experts; or of a rank's own experts [T, k * D], their outputs
    apart. adapted: the adapters of the rows, of an operator with places for them."""
    if op.own is not None:
        return outputs_apart(op, x, chosen, factors, weights, activation_groups, adapted).flatten(1)
    out = torch.zeros(len(x), op.out.width)
    for rows, place, result in _results(op, x, chosen, factors, weights, activation_groups, adapted):
        out[rows] += result if op.weigh_input else factors[rows, place][:, None] * result
    return out


def outputs_apart(
    op: Experts,
    x: torch.Tensor,
    chosen: torch.Tensor,
    factors: torch.Tensor,
    weights: Weights,
    activation_groups: Mapping[str, int],
    adapted: AdaptedRows | None = None,
) -> torch.Tensor:
    """Returns what the own experts make of each choice, f32 [T, k, D], before the factor."""
    out = torch.zeros(len(x), op.num_chosen, op.out_width)
    for rows, place, result in _results(op, x, chosen, factors, weights, activation_groups, adapted):
        out[rows, place] = result
    return out


def _results(
    op: Experts,
    x: torch.Tensor,
    chosen: torch.Tensor,
    factors: torch.Tensor,
    weights: Weights,
    activation_groups: Mapping[str, int],
    adapted: AdaptedRows | None,
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yields of each own expert that was chosen its rows, which choice of each it is, and what it makes of them."""
    first, last = (0, op.num_experts) if op.own is None else op.own
    for expert in range(first, last):
        rows, place = torch.nonzero(chosen == expert, as_tuple=True)
        if len(rows) == 0:
            continue
        inputs = x[rows] * factors[rows, place][:, None] if op.weigh_input else x[rows]
        of_rows = None if adapted is None else adapted.of(rows)
        inner = _inner(op, expert - first, inputs, weights, activation_groups, of_rows)
        result = _linear(inner, expert - first, op.num_own, op.down, op.down_bias, weights, activation_groups)
        if of_rows is not None:
            assert isinstance(op, AdapterExperts), "rows have adapters where there are places"
            change_product(op.down_parts[expert - first], inner, result, of_rows)
        yield rows, place, result


def _inner(
    op: Experts,
    expert: int,
    x: torch.Tensor,
    weights: Weights,
    activation_groups: Mapping[str, int],
    adapted: AdaptedRows | None,
) -> torch.Tensor:
    up = _linear(x, expert, op.num_own, op.up, op.up_bias, weights, activation_groups)
    parts = [up]
    if op.gate is not None:
        parts = [_linear(x, expert, op.num_own, op.gate, op.gate_bias, weights, activation_groups), up]
    elif op.is_gated:
        parts = list(up.chunk(2, dim=-1))
    if adapted is not None:
        assert isinstance(op, AdapterExperts), "rows have adapters where there are places"
        for part, product in zip(op.inner_parts[len(parts) * expert :], parts, strict=False):
            change_product(part, x, product, adapted)
    if not op.is_gated:
        return activate(parts[0], op.kind)
    gate, up = parts
    if op.limit is not None:
        gate, up = gate.clamp(max=op.limit), up.clamp(-op.limit, op.limit)
    activated = gate * torch.sigmoid(op.alpha * gate) if op.kind == "silu" else activate(gate, op.kind)
    return activated * (up + op.up_offset)


def _linear(
    x: torch.Tensor,
    expert: int,
    num_experts: int,
    name: str,
    bias: str | None,
    weights: Weights,
    activation_groups: Mapping[str, int],
) -> torch.Tensor:
    if name in activation_groups:
        x = quantize_activations(x, activation_groups[name])
    y = x @ weights[name].reshape(num_experts, -1, x.shape[-1])[expert].T
    return y if bias is None else y + weights[bias].reshape(num_experts, -1)[expert]
