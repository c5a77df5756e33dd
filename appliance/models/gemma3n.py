"""Gemma 3n (text): four residual streams, LAuReL blocks, sparse gates, inputs of each layer, and shared KV."""

from statistics import NormalDist

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, FeedForward, FeedForwardSpec, ResidualSpec
from appliance.layers.stream_spec import StreamsSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.errors import ModelError, Problem
from appliance.models.family import Model, Part
from appliance.models.gemma_layers import (
    LAYER_INPUT,
    LAYER_INPUTS,
    NORMS,
    OTHER_MEDIA,
    kv_layers,
    per_layer_inputs,
    text_root,
    with_kv_layer,
    without_unread,
)

_DENSE_FROM = 10  # in a config that states no sparsity, layers up to it are sparse


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """Media are no part of this version: the weights that read them are left out."""
    model = Model.of(facts, max_model_len)
    streams, sources, widths = _streams(model), kv_layers(model, default=15), _by_layer(model)
    dense = Dense(
        modules=NORMS,
        root=text_root(model),
        residual=ResidualSpec("sandwich"),
        query_key_norm=model.query_key_norm(),
        embedding_scale=model.config.hidden_size**0.5,
        mixer=lambda index, attention: with_kv_layer(model, attention, sources[index]),
        feed_forward=lambda index, _: widths[index],
        parts=(*LAYER_INPUT, *_parts(model, streams)),
        tables=(*LAYER_INPUTS, *_maps(model, streams)),
        ignored=OTHER_MEDIA,
    )
    inputs = per_layer_inputs(model)
    if inputs is None:
        raise ModelError(Problem("hidden_size_per_layer_input is 0 in the checkpoint's config", allowed="1 or more"))
    return without_unread(replace(dense_decoder(model, dense), per_layer=inputs, streams=streams))


def _streams(model: Model) -> StreamsSpec:
    if (active := model.count("altup_active_idx", 0)) != 0:
        raise ModelError(Problem(f"altup_active_idx is {active}: layers compute with the first stream", allowed="0"))
    number = model.fields.count("altup_num_inputs", 4, least=2)
    is_scaled = model.flag("altup_correct_scale", default=True)
    return StreamsSpec(number, model.fields.count("laurel_rank", 64), model.config.norm_eps, is_scaled)


def _by_layer(model: Model) -> list[FeedForward]:
    """Returns the feed-forwards: a config has one width and sparsity, or lists with one for each layer."""
    number = model.config.num_layers
    stated = model.fields.get("intermediate_size")
    widths = model.counts("intermediate_size") if isinstance(stated, list) else (stated,) * number
    shares = _sparsity(model)
    if len(widths) != number or len(shares) != number:
        message = f"intermediate_size or activation_sparsity_pattern does not list {number} layers"
        raise ModelError(Problem(message))
    blocks = [replace(model.feed_forward(), intermediate_size=width) for width in widths]
    return [_sparse(block, share) for block, share in zip(blocks, shares, strict=True)]


def _sparsity(model: Model) -> tuple[float, ...]:
    """Returns the share of each layer's gate that becomes zero."""
    stated, number = model.fields.get("activation_sparsity_pattern"), model.config.num_layers
    if stated is None:
        sparse = _DENSE_FROM if number > _DENSE_FROM else 0
        return (0.95,) * sparse + (0.0,) * (number - sparse)
    values = stated if isinstance(stated, list) else [stated] * number
    if not all(isinstance(value, int | float) and 0 <= value < 1 for value in values):
        raise ModelError(Problem(f"activation_sparsity_pattern is {stated!r}", allowed="numbers from 0 to below 1"))
    return tuple(map(float, values))


def _sparse(block: FeedForwardSpec, share: float) -> FeedForwardSpec:
    return replace(block, gate_deviations=NormalDist().inv_cdf(share)) if share else block


def _parts(model: Model, streams: StreamsSpec) -> tuple[Part, ...]:
    scale = (Part("streams.scale", "altup.correct_output_scale", suffix=""),) if streams.is_scaled else ()
    return (
        Part("streams.router", "altup.modality_router"),
        Part("streams.router_norm", "altup.router_norm", scale=1 / model.config.hidden_size),
        Part("streams.predict", "altup.prediction_coefs"),
        Part("streams.correct", "altup.correction_coefs"),
        *scale,
        Part("laurel.low", "laurel.linear_left"),
        Part("laurel.high", "laurel.linear_right"),
        Part("laurel.norm", "laurel.post_laurel_norm"),
    )


def _maps(model: Model, streams: StreamsSpec) -> tuple[Part, ...]:
    """Returns the maps of the streams: each is a matrix, or GGUF files have a stack of them."""
    modules = {"begin": "altup_projections", "end": "altup_unembed_projections"}
    is_stack = model.has_tensor("altup_projections.weight")
    return tuple(
        Part(f"streams.{name}.{index}", module, index=index - 1)
        if is_stack
        else Part(f"streams.{name}.{index}", f"{module}.{index - 1}")
        for name, module in modules.items()
        for index in range(1, streams.num_streams)
    )
