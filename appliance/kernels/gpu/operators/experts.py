"""Routed experts by torch: expert after expert, over the rows that chose it."""

import torch

from appliance.kernels.gpu.operators.adapters import DeviceRows
from appliance.kernels.gpu.products import by_rows
from appliance.kernels.gpu.step import DeviceStep
from appliance.kernels.reference.activations import activate
from appliance.program.adapters import AdapterExperts
from appliance.program.routing import Experts, MixExperts, PlaceExperts


def experts(op: Experts, step: DeviceStep) -> None:
    """Sums in f32, in the order of experts. It asks the device which were chosen, so it waits for it.

    What a rank's own experts give stays apart, and is zero for others.
    """
    _mix(op, step, None)


def adapter_experts(op: AdapterExperts, step: DeviceStep) -> None:
    """Does the same, with what the adapters of rows change of each expert."""
    _mix(op, step, DeviceRows.of(op.x.extent, step))


def place_experts(op: PlaceExperts, step: DeviceStep) -> None:
    """Finds the places of the chosen experts."""
    step.slot(op.out).copy_(step.bound.tables[op.mixture].find(step.slot(op.experts)))


def mix_experts(op: MixExperts, step: DeviceStep) -> None:
    """Sums in f32, in the order of choices."""
    x, factors, out = (step.slot(slot) for slot in (op.x, op.factors, op.out))
    total = torch.zeros(out.shape, device=x.device)
    for place in range(factors.shape[1]):
        part = x[:, place * op.out.width : (place + 1) * op.out.width].float()
        total += part if op.weigh_input else factors[:, place, None] * part
    out.copy_(total)


def _mix(op: Experts, step: DeviceStep, adapted: DeviceRows | None) -> None:
    x, chosen, factors = (step.slot(slot) for slot in (op.x, op.experts, op.factors))
    out = torch.zeros(len(x), op.out.width, device=x.device)
    first, last = (0, op.num_experts) if op.own is None else op.own
    for expert in torch.unique(chosen).tolist():
        if not first <= expert < last:
            continue
        rows, place = torch.nonzero(chosen == expert, as_tuple=True)
        factor = factors[rows, place][:, None].float()
        inputs = (x[rows] * factor).to(x.dtype) if op.weigh_input else x[rows]
        of_rows = None if adapted is None else adapted.some(rows)
        inner = _inner(op, expert - first, inputs, step, of_rows)
        result = _linear(inner, expert - first, op, op.down, op.down_bias, step).float()
        if of_rows is not None and isinstance(op, AdapterExperts):
            of_rows.change(op.down_parts[expert - first], inner, result)
        if op.own is not None:
            out.view(len(x), op.num_chosen, op.out_width)[rows, place] = result
            continue
        out.index_add_(0, rows, result if op.weigh_input else factor * result)
    step.slot(op.out).copy_(out)


def _inner(op: Experts, expert: int, x: torch.Tensor, step: DeviceStep, adapted: DeviceRows | None) -> torch.Tensor:
    parts = [_linear(x, expert, op, op.up, op.up_bias, step)]
    if op.gate is not None:
        parts.insert(0, _linear(x, expert, op, op.gate, op.gate_bias, step))
    elif op.is_gated:
        parts = list(parts[0].chunk(2, dim=-1))
    if adapted is not None and isinstance(op, AdapterExperts):
        for part, product in zip(op.inner_parts[len(parts) * expert :], parts, strict=False):
            adapted.change(part, x, product)
    if not op.is_gated:
        return activate(parts[0], op.kind)
    gate, up = parts
    if op.limit is not None:
        gate, up = gate.clamp(max=op.limit), up.clamp(-op.limit, op.limit)
    activated = gate * torch.sigmoid(op.alpha * gate) if op.kind == "silu" else activate(gate, op.kind)
    return activated * (up + op.up_offset)


def _linear(x: torch.Tensor, expert: int, op: Experts, name: str, bias: str | None, step: DeviceStep) -> torch.Tensor:
    matrix = step.bound.matrices[name]
    height = matrix.shape[0] // op.num_own
    rows = slice(expert * height, (expert + 1) * height)
    weight = matrix.read(rows, x.dtype)
    y = by_rows(lambda some: some @ weight.T, x, step.bound.fixed_rows)
    return y if bias is None else y + step.vector(bias)[rows].to(y.dtype)
