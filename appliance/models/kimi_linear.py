"""Kimi Linear: gated delta layers whose channels decay by themselves, latent attention without positions, experts."""

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.recurrent_spec import GatedDeltaSpec
from appliance.layers.spec import DecoderSpec
from appliance.models.deepseek_routing import deepseek_mixture
from appliance.models.dense import Dense, Recurrent, dense_decoder
from appliance.models.experts import MIXTRAL_MODULES, Mixture
from appliance.models.family import Model
from appliance.models.gated_delta import separate_parts
from appliance.models.latent import with_latent_attention

_MODULES = {
    **{name: f"{name}_proj" for name in "qkvo"},
    "z.low": "g_a_proj",
    "z": "g_b_proj",
    "decay.low": "f_a_proj",
    "decay": "f_b_proj",
    "beta": "b_proj",
    "norm": "o_norm",
}
_EXPERTS = replace(
    MIXTRAL_MODULES,
    correction="block_sparse_moe.gate.e_score_correction_bias",
    shared="block_sparse_moe.shared_experts",
)


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """Transformers saves the dense layers under the name of the experts' block."""
    model = Model.of(facts, max_model_len)
    mixture = deepseek_mixture(model, renormalize=True, first_dense=1)
    mixture = Mixture.of(model, mixture.spec, _EXPERTS, mixture.is_sparse)
    where = "mlp" if model.has_tensor(".mlp.gate_proj.weight") else "block_sparse_moe"
    modules = {name: f"{where}.{name}_proj" for name in ("gate", "up", "down")}
    dense = with_latent_attention(model, Dense(modules=modules), interleaved=False)
    return dense_decoder(model, dense, mixture, Recurrent(_spec(model), separate_parts(model, _MODULES, "self_attn")))


def _spec(model: Model) -> GatedDeltaSpec:
    heads, size = model.count("linear_num_heads", 32), model.count("linear_head_dim", 128)
    return GatedDeltaSpec(
        num_key_heads=heads,
        num_value_heads=heads,
        key_dim=size,
        value_dim=size,
        kernel_size=model.count("linear_conv_kernel_dim", 4),
        norm=NormSpec("rms", model.config.norm_eps),
        gate="sigmoid",
        decay_rank=size,
        gate_rank=size,
    )
