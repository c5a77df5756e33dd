"""gpt-oss: a sink for each head, windows in every second layer, and experts with biases and a clamped activation."""

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, RoutingSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.experts import ExpertModules, Mixture
from appliance.models.family import Model, Part

# Rows of gate and up take turns, and the plain stacks are stored (in, out).
_STACKS = ExpertModules(
    router="mlp.router", gate="gate_up_proj", up="gate_up_proj", suffix="", alternate=True, transform="transpose"
)


_APART = ExpertModules(router="mlp.router")  # as GGUF files have them, and quantized ones by expert


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    routing = RoutingSpec("softmax_of_chosen", bias=True)
    spec = replace(
        model.experts(routing),
        bias=True,
        limit=model.number("swiglu_limit", 7.0),
        alpha=model.number("swiglu_alpha", 1.702),
        up_offset=1.0,
    )
    dense = Dense(
        mixer=lambda _, attention: replace(attention, sinks=True),
        parts=(Part("sinks", "self_attn.sinks", suffix=""),),
    )
    is_apart = facts.format == "gguf" or model.has_tensor(".experts.0.down_proj.weight")
    return dense_decoder(model, dense, Mixture.of(model, spec, _APART if is_apart else _STACKS))
