"""Embeddings, norms, products and what is done element by element, by torch. Formulas: appliance.program.operators."""

import torch

from appliance.kernels.gpu import float8
from appliance.kernels.gpu.float8 import Float8Matrix
from appliance.kernels.gpu.products import by_rows
from appliance.kernels.gpu.step import DeviceStep
from appliance.kernels.reference.activations import activate, xielu
from appliance.program import operators as ops
from appliance.program.attention import HeadLinear
from appliance.program.record import NormKind
from appliance.program.routing import GatedAdd

WHOLE = slice(None)


def embed(op: ops.Embed, step: DeviceStep) -> None:
    table, token_ids = step.bound.matrices[op.table], step.arrays.token_ids
    if op.missing_row is not None:
        token_ids = torch.where(token_ids < (op.num_tokens or table.shape[0]), token_ids, op.missing_row)
    wanted = token_ids
    if op.own is not None:
        token_ids = wanted.clamp(op.own[0], op.own[1] - 1) - op.own[0]
    rows = _placed(op, table.read(token_ids, torch.float32) * op.scale, step)
    if op.own is not None:
        is_away = (wanted < op.own[0]) | (wanted >= op.own[1])
        rows = rows.masked_fill(is_away[:, None], 0.0)  # a gather unites them with the rows of other ranks
    step.slot(op.out).copy_(rows)
    put_given(op, step)


def put_given(op: ops.Embed, step: DeviceStep) -> None:
    """Puts the embeddings that the step was given in place of those that were read; of several ranks, the one does that
    has the row of their tokens' id."""
    embeds, out = step.arrays.embeds, step.slot(op.out)
    if embeds is None or op.given_scale is None:
        return
    given, row_of = embeds
    rows, is_given = _placed(op, given[row_of.clamp(0)] * op.given_scale, step), row_of >= 0
    if op.own is not None:
        is_given = is_given & (step.arrays.token_ids >= op.own[0]) & (step.arrays.token_ids < op.own[1])
    out.copy_(torch.where(is_given[:, None], rows.to(out.dtype), out))


def _placed(op: ops.Embed, rows: torch.Tensor, step: DeviceStep) -> torch.Tensor:
    """Returns embeddings f32 [T, D] with those of their positions and segments added."""
    if op.position_table is not None:
        places = step.arrays.positions + op.position_offset
        rows = rows + step.bound.matrices[op.position_table].read(places, torch.float32)
    if op.type_table is not None:
        rows = rows + step.bound.vectors[op.type_table][step.arrays.token_types]
    return rows


def rms_norm(op: ops.RmsNorm, step: DeviceStep) -> None:
    normed = _normed(_residual_sum(op, step), "rms", op.eps)
    step.slot(op.out).copy_(_affine(normed, op.weight, None, step))


def layer_norm(op: ops.LayerNorm, step: DeviceStep) -> None:
    normed = _normed(_residual_sum(op, step), "layer", op.eps)
    step.slot(op.out).copy_(_affine(normed, op.weight, op.bias, step))


def head_norm(op: ops.HeadNorm, step: DeviceStep) -> None:
    x = step.span(op.x)
    heads = x.float().reshape(-1, op.num_heads, op.head_dim)
    step.span(op.out or op.x).copy_(_affine(_normed(heads, op.kind, op.eps), op.weight, op.bias, step).flatten(1))


def _residual_sum(op: ops.RmsNorm | ops.LayerNorm, step: DeviceStep) -> torch.Tensor:
    """Returns what is normed, in f32; the residual is rounded to its own type first."""
    x = step.slot(op.x).float()
    if op.residual is None:
        return x
    residual = step.slot(op.residual)
    residual.copy_(residual.float() + x * op.scale)
    return residual.float()


def _normed(x: torch.Tensor, kind: NormKind, eps: float) -> torch.Tensor:
    if kind == "layer":
        x = x - x.mean(-1, keepdim=True)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def _affine(x: torch.Tensor, weight: str | None, bias: str | None, step: DeviceStep) -> torch.Tensor:
    """x * weight + bias over its last dimensions; vectors are as long as these together."""
    if weight is not None:
        x = x * step.vector(weight).reshape(-1, x.shape[-1])
    return x if bias is None else x + step.vector(bias).reshape(-1, x.shape[-1])


def linear(op: ops.Linear, step: DeviceStep) -> None:
    """The product goes where its result is wanted, if nothing but a bias comes between."""
    x, out, matrix = step.span(op.x), step.span(op.out), step.bound.matrices[op.weight]
    if isinstance(matrix, Float8Matrix):
        codes, scales = float8.to_float8(x)
        store_product(op, float8.product(codes, scales, matrix, x.dtype, step.bound.fixed_rows), step)
        return
    weight = matrix.read(WHOLE, x.dtype).T
    if op.activation is None and not step.bound.fixed_rows and out.dtype == x.dtype:
        if op.accumulate:
            out.addmm_(x, weight)
        else:
            torch.mm(x, weight, out=out)
        if op.bias is not None:
            out.add_(step.vector(op.bias))
        return
    store_product(op, by_rows(lambda rows: rows @ weight, x, step.bound.fixed_rows), step)


def store_product(op: ops.Linear, y: torch.Tensor, step: DeviceStep) -> None:
    """Stores what a Linear makes of y [rows, N], a product of x and its weight."""
    out = step.span(op.out)
    if op.bias is not None:
        y = y + step.vector(op.bias)
    if op.activation is not None:
        y = activate(y, op.activation)
    out.copy_(out + y if op.accumulate else y)


def head_linear(op: HeadLinear, step: DeviceStep) -> None:
    x = step.span(op.x).reshape(-1, op.num_heads, op.x.width // op.num_heads)
    weight = step.bound.matrices[op.weight].read(WHOLE, x.dtype).reshape(op.num_heads, -1, x.shape[-1])
    parts = [by_rows(lambda rows: torch.einsum("thk,hmk->thm", rows, weight), x, step.bound.fixed_rows)]
    if op.tail is not None:
        parts.append(step.span(op.tail).reshape(len(x), op.num_heads, -1))
    step.slot(op.out).copy_(torch.cat(parts, dim=-1).flatten(1))


def activation(op: ops.Activation, step: DeviceStep) -> None:
    x = step.slot(op.x).float()
    if op.kind == "xielu":
        assert op.parameters is not None, "xielu has parameters"
        step.slot(op.out).copy_(xielu(x, step.vector(op.parameters)))
    else:
        step.slot(op.out).copy_(activate(x, op.kind))


def gated_activation(op: ops.GatedActivation, step: DeviceStep) -> None:
    gate, up = step.span(op.gate).float(), step.span(op.up).float()
    step.slot(op.out).copy_((gate if op.kind is None else activate(gate, op.kind)) * up)


def rope(op: ops.Rope, step: DeviceStep) -> None:
    x = step.span(op.x)
    heads = x.float().reshape(-1, op.num_heads, op.head_dim)
    rotated, rest = heads[..., : op.rotary_dim], heads[..., op.rotary_dim :]
    cos, sin = step.bound.vectors[op.table][step.arrays.positions][:, None, :].chunk(2, dim=-1)
    if op.interleaved:
        first, second = rotated[..., 0::2], rotated[..., 1::2]
        pairs = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
    else:
        first, second = rotated.chunk(2, dim=-1)
        pairs = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    x.copy_(torch.cat((pairs, rest), dim=-1).flatten(1))


def add(op: ops.Add, step: DeviceStep) -> None:
    step.slot(op.out).add_(step.slot(op.x))


def copy(op: ops.Copy, step: DeviceStep) -> None:
    step.span(op.out).copy_(step.span(op.x))


def gather_rows(op: ops.GatherRows, step: DeviceStep) -> None:
    step.slot(op.out).copy_(step.slot(op.x)[step.arrays.sampled_rows])


def soft_cap(op: ops.SoftCap, step: DeviceStep) -> None:
    x = step.slot(op.x)
    x.copy_(op.cap * torch.tanh(x.float() / op.cap))


def scale(op: ops.Scale, step: DeviceStep) -> None:
    step.span(op.x).mul_(op.factor)


def scale_by_weight(op: ops.ScaleByWeight, step: DeviceStep) -> None:
    step.slot(op.out).copy_(step.slot(op.x).float() * step.vector(op.weight))


def gated_add(op: GatedAdd, step: DeviceStep) -> None:
    step.slot(op.out).add_(torch.sigmoid(step.slot(op.gate).float()) * step.slot(op.x))
