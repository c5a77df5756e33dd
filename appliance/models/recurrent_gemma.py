"""RecurrentGemma: Gemma's blocks with real-gated linear recurrent units, and windowed attention in some layers."""

import math

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.recurrent_spec import RgLruSpec
from appliance.layers.spec import DecoderSpec, FeedForwardSpec
from appliance.models.dense import Dense, Recurrent, dense_decoder
from appliance.models.errors import ModelError, Problem
from appliance.models.family import Model, Part

_MODULES = {
    "norm": "final_norm",
    "attention_norm": "temporal_pre_norm",
    "feed_forward_norm": "channel_pre_norm",
    **{name: f"temporal_block.{name}_proj" for name in ("q", "k", "v", "o")},
    **{name: f"mlp_block.{name}_proj" for name in ("gate", "up", "down")},
}
_GATES = {"input_gate": "input_gate", "recurrence_gate": "recurrent_gate"}
_LINEARS = {"x": "x", "y": "y", "o": "out"}
_PANEL = 16  # kernels compute so many rows of a head's matrix at a time


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """The config's `intermediate_size` is that of gate and up together."""
    model = Model.of(facts, max_model_len)
    config = model.config
    dense = Dense(
        modules=_MODULES,
        stored_norms="none" if facts.stored.norm_includes_one else "add_one",
        embedding_scale=_as_bf16(config.hidden_size**0.5),
    )
    fed = FeedForwardSpec(config.intermediate_size // 2, model.activation_kind, bias=True)
    spec = _unit(model)
    return dense_decoder(model, dense, recurrent=Recurrent(spec, tuple(_parts(spec))), feed_forward=fed)


def _unit(model: Model) -> RgLruSpec:
    """Raises ModelError for a width that its heads do not share out in a way that kernels have."""
    width, heads = model.count("lru_width", model.config.hidden_size), model.config.num_heads
    if width % (heads * _PANEL):
        message = f"lru_width is {width}, and there are {heads} heads"
        raise ModelError(Problem(message, allowed=f"a multiple of {_PANEL} columns a head"))
    return RgLruSpec(width, heads, model.count("conv1d_width", 4), model.activation_kind)


def _parts(spec: RgLruSpec) -> list[Part]:
    unit = "temporal_block.rg_lru"
    parts = [Part(f"lru.{name}", f"temporal_block.linear_{module}", bias=True) for name, module in _LINEARS.items()]
    parts += [
        Part("lru.conv", "temporal_block.conv_1d", bias=True),
        Part("lru.decay", f"{unit}.recurrent_param", suffix=""),
    ]
    for name, module in _GATES.items():
        parts.append(Part(f"lru.{name}.bias", f"{unit}.{module}_bias", suffix=""))
        stack = Part("", f"{unit}.{module}_weight", suffix="", transform="transpose")
        parts += [replace(stack, name=f"lru.{name}.{head}", index=head) for head in range(spec.num_heads)]
    return parts


def _as_bf16(value: float) -> float:
    """Returns the nearest number with eight significant bits, in which transformers keeps this factor."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 256), exponent - 8)
