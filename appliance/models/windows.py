"""Windows of attention that no sequence is long enough to leave."""

from typing import Final

from msgspec.structs import replace

from appliance.layers.spec import AttentionSpec, DecoderSpec, LayerSpec, Mixer, ParallelSpec
from appliance.models.errors import ModelError, Problem

DISABLE_WINDOWS: Final = "disable_sliding_window"  # a key that a spec adds to the checkpoint's config


def without_windows(spec: DecoderSpec) -> DecoderSpec:
    """Returns the decoder in whose layers a token sees all tokens before it. It computes the same for sequences that
    are no longer than the smallest window. Raises ModelError if windows reach to both sides of a token."""
    return replace(spec, layers=tuple(_whole_layer(layer) for layer in spec.layers))


def _whole_layer(layer: LayerSpec) -> LayerSpec:
    shared = layer.shared
    return replace(
        layer,
        mixer=None if layer.mixer is None else _whole(layer.mixer),
        shared=None if shared is None else replace(shared, attention=_whole_attention(shared.attention)),
    )


def _whole(mixer: Mixer) -> Mixer:
    if isinstance(mixer, ParallelSpec):
        return replace(mixer, attention=_whole_attention(mixer.attention))
    return _whole_attention(mixer) if isinstance(mixer, AttentionSpec) else mixer


def _whole_attention(attention: AttentionSpec) -> AttentionSpec:
    if attention.window is not None and attention.is_whole:
        message = "windows of this model reach to both sides of a token, so a shorter context does not disable them"
        raise ModelError(Problem(message, hint="remove model.disable_sliding_window", concerns="windows"))
    return replace(attention, window=None)
