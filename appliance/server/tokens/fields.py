"""The body of POST /inference/v1/generate, which the render routes answer with."""

from typing import Any

import msgspec

from appliance.requests.fields import SamplingFields, StreamOptions


class TokenSamplingFields(SamplingFields, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Sampling fields with the meaning that they have in completions; None is the same as absent."""

    logprobs: int | None = None


class GenerateFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """token_ids: of one prompt, special tokens and all."""

    token_ids: list[int]
    sampling_params: TokenSamplingFields = msgspec.field(default_factory=TokenSamplingFields)
    model: str | None = None
    request_id: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    priority: int | None = None
    cache_salt: str | None = None
    features: Any = None
    kv_transfer_params: Any = None


UNBUILT: dict[str, tuple[Any, ...]] = {"features": (None, []), "kv_transfer_params": (None, {})}
SAMPLING_NAMES = tuple(name for name in TokenSamplingFields.__struct_fields__ if name != "max_tokens")
