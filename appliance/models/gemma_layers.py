"""What Gemma 3n and 4 share: inputs of each layer, and keys and values of another layer."""

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import AttentionSpec, DecoderSpec
from appliance.layers.stream_spec import PerLayerSpec
from appliance.models.errors import ModelError, Problem
from appliance.models.family import Model, Part

OTHER_MEDIA: Final = (
    "*vision_tower.*",
    "*multi_modal_projector.*",
    "*audio_tower.*",
    "*embed_vision.*",
    "*embed_audio.*",
)
NORMS: Final[Mapping[str, str]] = {"feed_forward_norm": "pre_feedforward_layernorm"}
LAYER_INPUT: Final = (
    Part("per_layer.gate", "per_layer_input_gate"),
    Part("per_layer.out", "per_layer_projection"),
    Part("per_layer.post_norm", "post_per_layer_input_norm"),
)
LAYER_INPUTS: Final = (
    Part("per_layer.embed", "embed_tokens_per_layer"),
    Part("per_layer.project", "per_layer_model_projection"),
    Part("per_layer.norm", "per_layer_projection_norm", scale=2**-0.5),
)
_OWN: Final = {"k": "k_proj", "v": "v_proj", "k_norm": "k_norm"}  # what a layer that reads another's lacks


def text_root(model: Model) -> str:
    """Returns the prefix of the language model's tensors: in a checkpoint with other media, it is a part, which lay
    elsewhere before transformers 4.52."""
    names = [tensor.name for tensor in model.facts.tensors]
    parts = ("language_model.model.", "model.language_model.")
    return next((part for part in parts if any(name.startswith(part) for name in names)), "model.")


def per_layer_inputs(model: Model) -> PerLayerSpec | None:
    """Returns the inputs of layers; None for a model without them."""
    width = model.count("hidden_size_per_layer_input", 256)
    if not width:
        return None
    return PerLayerSpec(
        width=width,
        num_rows=model.count("vocab_size_per_layer_input", 262_144),
        activation=model.activation_kind,
        norm_eps=model.config.norm_eps,
        input_scale=model.config.hidden_size**-0.5,
        table_scale=width**0.5,
        sum_scale=2**-0.5,
    )


def kv_layers(model: Model, default: int) -> tuple[int | None, ...]:
    """Returns for each layer the one whose keys and values it reads, None for its own: the last num_kv_shared_layers
    read those of the last layer of their kind before them. Raises ModelError if there is none."""
    kinds, num_shared = [layer.kind for layer in model.config.layers], model.count("num_kv_shared_layers", default)
    first = len(kinds) - num_shared
    sources = {kind: index for index, kind in enumerate(kinds[: max(first, 0)])}
    if missing := set(kinds[max(first, 0) :]) - set(sources):
        message = f"the last {num_shared} of {len(kinds)} layers share keys and values, and no {min(missing)} is before"
        raise ModelError(Problem(f"{message} them"))
    return tuple(None if index < first else sources[kind] for index, kind in enumerate(kinds))


def with_kv_layer(model: Model, attention: AttentionSpec, kv_layer: int | None) -> AttentionSpec:
    """Returns attention whose values have a norm without weights."""
    return replace(attention, value_norm=NormSpec("rms", model.config.norm_eps, weight=False), kv_layer=kv_layer)


def without_unread(spec: DecoderSpec) -> DecoderSpec:
    """Returns the decoder without weights that its layers do not read, and ignores them where they are stored."""
    unread = dict(_unread(spec))
    weights = {name: source for name, source in spec.weights.items() if name not in unread}
    return replace(spec, weights=weights, ignored_tensors=(*spec.ignored_tensors, *unread.values()))


def _unread(spec: DecoderSpec) -> Iterator[tuple[str, str]]:
    """Yields the logical names, and the patterns of the tensors and their scales or biases."""
    for index, layer in enumerate(spec.layers):
        if not isinstance(layer.mixer, AttentionSpec):
            continue
        own = _OWN if layer.mixer.kv_layer is not None else {"v": "v_proj"} if layer.mixer.values_are_keys else {}
        for name, module in own.items():
            yield f"layers.{index}.{name}", f"*layers.{index}.self_attn.{module}.*"
            yield f"layers.{index}.{name}.bias", f"*layers.{index}.self_attn.{module}.*"
