"""Which function runs an operator."""

from collections.abc import Callable, Mapping
from typing import Any

from appliance.kernels.gpu.operators import adapters, attention, dense, experts, ranks
from appliance.kernels.gpu.operators.by_reference import by_reference
from appliance.kernels.gpu.step import DeviceStep
from appliance.program import operators as ops
from appliance.program.adapters import AdapterEmbed, AdapterExperts, AdapterLinear
from appliance.program.attention import HeadLinear
from appliance.program.ranks import Gather, Meet
from appliance.program.routing import Experts, GatedAdd, MixExperts, PlaceExperts

Run = Callable[[Any, DeviceStep], None]

_BY_TORCH: dict[type[Any], Run] = {
    ops.Embed: dense.embed,
    ops.RmsNorm: dense.rms_norm,
    ops.LayerNorm: dense.layer_norm,
    ops.HeadNorm: dense.head_norm,
    ops.Linear: dense.linear,
    HeadLinear: dense.head_linear,
    ops.Activation: dense.activation,
    ops.GatedActivation: dense.gated_activation,
    ops.Rope: dense.rope,
    ops.Add: dense.add,
    ops.Copy: dense.copy,
    ops.GatherRows: dense.gather_rows,
    ops.SoftCap: dense.soft_cap,
    ops.Scale: dense.scale,
    ops.ScaleByWeight: dense.scale_by_weight,
    GatedAdd: dense.gated_add,
    ops.KvWrite: attention.kv_write,
    ops.PagedAttention: attention.paged_attention,
    Experts: experts.experts,
    AdapterLinear: adapters.adapter_linear,
    AdapterEmbed: adapters.adapter_embed,
    AdapterExperts: experts.adapter_experts,
    MixExperts: experts.mix_experts,
    PlaceExperts: experts.place_experts,
    Gather: ranks.gather,
    Meet: ranks.meet,
}


def implementation(record: type[Any], table: Mapping[type[Any], Run]) -> Run:
    """Returns the function that runs the operators of a record; `table` comes before torch's functions."""
    return table.get(record) or _BY_TORCH.get(record, by_reference)
