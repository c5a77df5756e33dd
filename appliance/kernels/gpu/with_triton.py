"""All that a set with Triton's kernels takes. It imports triton, so it is itself imported only by such a set."""

from appliance.kernels.gpu.fused import fuse
from appliance.kernels.gpu.operators import adapters_by_triton, by_triton, states_by_triton
from appliance.kernels.gpu.operators.table import Run
from appliance.kernels.gpu.packed_matrix import packed_matrix
from appliance.kernels.gpu.parts import Parts
from appliance.kernels.gpu.triton_kit import TritonKit
from appliance.program import operators as ops
from appliance.program.adapters import AdapterLinear
from appliance.program.attention import HeadLinear
from appliance.program.routing import Experts, MixExperts
from appliance.program.states import GatedDelta, RgLru, ShortConv, StateSpace

_TABLE: dict[type[ops.Operator], Run] = {
    ops.RmsNorm: by_triton.rms_norm,
    ops.LayerNorm: by_triton.layer_norm,
    ops.HeadNorm: by_triton.head_norm,
    ops.Rope: by_triton.rope,
    ops.KvWrite: by_triton.kv_write,
    ops.PagedAttention: by_triton.paged_attention,
    ops.Linear: by_triton.linear,
    ops.Activation: by_triton.activation,
    ops.GatedActivation: by_triton.gated_activation,
    ops.GatherRows: by_triton.gather_rows,
    ops.Embed: by_triton.embed,
    AdapterLinear: adapters_by_triton.adapter_linear,
    Experts: by_triton.experts,
    MixExperts: by_triton.mix_experts,
    HeadLinear: by_triton.head_linear,
    GatedDelta: states_by_triton.gated_delta,
    RgLru: states_by_triton.rg_lru,
    ShortConv: states_by_triton.short_conv,
    StateSpace: states_by_triton.state_space,
}
PARTS = Parts(_TABLE, packed_matrix, TritonKit, fuse)
