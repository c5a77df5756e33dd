"""Latent attention as configs state it (DeepSeek V2's names), and where checkpoints keep its weights."""

import math

import msgspec
from msgspec.structs import replace

from appliance.layers.spec import AttentionSpec, LatentAttentionSpec
from appliance.models.dense import Dense
from appliance.models.errors import ModelError, Problem
from appliance.models.family import Model, Part

_NORM_EPS = 1e-6  # of latents: fixed in every family's own code
_PANEL = 16  # kernels compute so many rows of a head's matrix at a time


class Latent(msgspec.Struct, frozen=True):
    """The sizes of latent attention; the words are those of LatentAttentionSpec."""

    nope_dim: int
    rope_dim: int
    value_dim: int
    kv_rank: int
    q_rank: int | None

    @classmethod
    def of(cls, model: Model) -> "Latent":
        """Reads the config. Raises ModelError for sizes that no kernel has."""
        config, fields = model.config, model.fields
        q_rank = fields.get("q_lora_rank")
        value_dim = fields.count("v_head_dim", config.hidden_size // config.num_heads)
        found = cls(
            nope_dim=fields.count("qk_nope_head_dim"),
            rope_dim=fields.count("qk_rope_head_dim"),
            value_dim=value_dim,
            kv_rank=fields.count("kv_lora_rank"),
            q_rank=None if q_rank is None else fields.count("q_lora_rank"),
        )
        sizes = {"kv_lora_rank": found.kv_rank, "v_head_dim": found.value_dim}
        if odd := [f"{name} is {size}" for name, size in sizes.items() if size % _PANEL]:
            raise ModelError(Problem(", ".join(odd), allowed=f"multiples of {_PANEL}"))
        return found


def with_latent_attention(model: Model, dense: Dense, *, interleaved: bool) -> Dense:
    """Returns a family's differences with latent attention in every layer. interleaved: rotated columns are
    neighbours."""
    sizes = Latent.of(model)
    return replace(
        dense,
        interleaved=interleaved,
        mixer=lambda _, attention: _spec(model, sizes, attention),
        mixer_parts=tuple(_parts(model, sizes)),
    )


def _spec(model: Model, sizes: Latent, attention: AttentionSpec) -> LatentAttentionSpec:
    return LatentAttentionSpec(
        num_heads=attention.num_heads,
        nope_dim=sizes.nope_dim,
        rope_dim=sizes.rope_dim,
        value_dim=sizes.value_dim,
        kv_rank=sizes.kv_rank,
        q_rank=sizes.q_rank,
        scale=(sizes.nope_dim + sizes.rope_dim) ** -0.5 * _long_context_factor(model),
        rope=attention.rope,
        norm_eps=_NORM_EPS,
        bias=attention.qkv_bias,
        out_bias=attention.out_bias,
    )


def _long_context_factor(model: Model) -> float:
    """Returns the square of yarn's magnitude, by which scores of a longer context are multiplied."""
    rope = model.config.layers[0].rope
    weight = None if rope is None or rope.kind == "default" else rope.parameters.get("mscale_all_dim")
    if rope is None or not weight:
        return 1.0
    factor = float(rope.parameters["factor"])
    return 1.0 if factor <= 1 else (0.1 * float(weight) * math.log(factor) + 1.0) ** 2


def _parts(model: Model, sizes: Latent) -> list[Part]:
    heads, nope, key = model.config.num_heads, sizes.nope_dim, sizes.nope_dim + sizes.rope_dim
    bias = model.config.attention_bias
    queries = "self_attn.q_proj" if sizes.q_rank is None else "self_attn.q_b_proj"
    both, kv = Part("", queries, num_parts=heads), Part("", "self_attn.kv_b_proj", num_parts=heads)
    if model.has_tensor(".self_attn.k_b_proj.weight"):  # GGUF files have both of kv_b apart, as they are used
        ups = [Part("k_up", "self_attn.k_b_proj"), Part("v_up", "self_attn.v_b_proj")]
    else:
        ups = [
            replace(kv, name="k_up", rows=(0, nope), transform="transpose_parts"),
            replace(kv, name="v_up", rows=(nope, nope + sizes.value_dim)),
        ]
    parts = [
        replace(both, name="q_nope", rows=(0, nope)),
        replace(both, name="q_rope", rows=(nope, key)),
        Part("kv_a", "self_attn.kv_a_proj_with_mqa", bias),
        Part("kv_a_norm", "self_attn.kv_a_layernorm"),
        *ups,
        Part("o", "self_attn.o_proj", model.config.attention_out_bias),
    ]
    if sizes.q_rank is not None:
        parts += [Part("q_a", "self_attn.q_a_proj", bias), Part("q_a_norm", "self_attn.q_a_layernorm")]
    return parts
