"""The body of POST /inference/v1/generate, which the render routes answer with."""

from typing import Any

import msgspec

from appliance.server.fields import StreamOptions


class SamplingFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """As in completions; None is as if absent."""

    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None


class GenerateFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """token_ids: of one prompt, special tokens and all."""

    token_ids: list[int]
    sampling_params: SamplingFields = msgspec.field(default_factory=SamplingFields)
    model: str | None = None
    request_id: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    priority: int | None = None
    cache_salt: str | None = None
    features: Any = None
    kv_transfer_params: Any = None


UNBUILT: dict[str, tuple[Any, ...]] = {"features": (None, []), "kv_transfer_params": (None, {})}
SAMPLING_NAMES = tuple(name for name in SamplingFields.__struct_fields__ if name != "max_tokens")
