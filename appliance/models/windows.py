"""Windows of attention: without them, where no sequence is long enough to leave one; and with caches that keep all."""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from appliance.layers.spec import AttentionSpec, DecoderSpec, LayerSpec, Mixer, ParallelSpec
from appliance.models.errors import ModelError, Problem

# Keys that a spec adds to the checkpoint's config.
DISABLE_WINDOWS: Final = "disable_sliding_window"
KEEP_ALL: Final = "disable_hybrid_kv_cache_manager"
_Change = Callable[[AttentionSpec], AttentionSpec]


def without_windows(spec: DecoderSpec) -> DecoderSpec:
    """Returns the decoder in whose layers a token sees all tokens before it. It computes the same for sequences that
    are no longer than the smallest window. Raises ModelError if windows reach to both sides of a token."""
    return _with_attention(spec, _whole_attention)


def keeping_all(spec: DecoderSpec) -> DecoderSpec:
    """Returns the decoder that computes the same, and whose caches keep the tokens that windows have left."""
    return _with_attention(spec, lambda attention: replace(attention, keeps_all=True))


def _with_attention(spec: DecoderSpec, change: _Change) -> DecoderSpec:
    return replace(spec, layers=tuple(_changed_layer(layer, change) for layer in spec.layers))


def _changed_layer(layer: LayerSpec, change: _Change) -> LayerSpec:
    shared = layer.shared
    return replace(
        layer,
        mixer=None if layer.mixer is None else _changed(layer.mixer, change),
        shared=None if shared is None else replace(shared, attention=change(shared.attention)),
    )


def _changed(mixer: Mixer, change: _Change) -> Mixer:
    if isinstance(mixer, ParallelSpec):
        return replace(mixer, attention=change(mixer.attention))
    return change(mixer) if isinstance(mixer, AttentionSpec) else mixer


def _whole_attention(attention: AttentionSpec) -> AttentionSpec:
    if attention.window is not None and attention.is_whole:
        message = "windows of this model reach to both sides of a token, so a shorter context does not disable them"
        raise ModelError(Problem(message, hint="remove model.disable_sliding_window", concerns="windows"))
    return replace(attention, window=None)
