"""The request bodies, field by field. A field that is not listed is refused by name, and so is one that is not built.

Types are strict: no text where a number belongs. None always means "as if absent".
"""

from typing import Any, ClassVar, Literal

import msgspec

from appliance.requests.chat_kinds import CHAT_PARTS
from appliance.requests.errors import invalid, not_in_this_version
from appliance.requests.structured_fields import ResponseFormat, StructuredOutputs


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # OpenAI's padding against traffic analysis: not sent, as allowed


class PromptCacheOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Prefixes are cached by themselves, until something newer needs their blocks."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: str | None = None
    prewarm: bool | None = None
    comparison_response_id: str | None = None

    def refuse_unbuilt(self) -> None:
        for name in ("prewarm", "comparison_response_id"):
            if getattr(self, name):
                raise not_in_this_version(f"prompt_cache_options.{name}")


class LogitsProcessor(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One that is constructed; a plain name is one that is there already."""

    qualname: str
    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None


class LoraChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An adapter by its name, or by its place in GET /lora-adapters, and how strong it is: 0 is the model alone. None
    is the adapter's own scale."""

    name: str | None = None
    id: int | None = None
    scale: float | None = None


class SamplingFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of sampling and of stopping, the same in every OpenAI-like body."""

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
    prompt_logprobs: int | None = None
    logits_processors: list[str | LogitsProcessor] | None = None


class GenerationFields(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """Fields that completions and chat completions share."""

    model: str | None = None
    lora: list[LoraChoice] | None = None
    truncate_prompt_tokens: int | None = None
    return_tokens_as_token_ids: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None

    # Standard fields that change nothing here.
    user: str | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    store: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None

    # What the answer must look like; see server.structured.
    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_decoding_backend: str | None = None
    guided_whitespace_pattern: str | None = None
    structured_outputs: StructuredOutputs | None = None

    # How the sequences are chosen; see server.search.
    best_of: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    return_token_ids: bool | None = None

    # Known, and refused while they are not built; see UNBUILT.
    kv_transfer_params: Any = None
    vllm_xargs: Any = None


class CompletionFields(GenerationFields, kw_only=True, forbid_unknown_fields=True):
    """prompt: text, texts, token ids, or lists of token ids. prompt_embeds: of further prompts, which come first: each
    is a tensor [tokens, width] as `torch.save` or safetensors writes it, in base64."""

    prompt: str | list[str | int | list[int]] | None = None
    logprobs: int | None = None
    echo: bool | None = False
    add_special_tokens: bool = True
    suffix: str | None = None
    prompt_embeds: str | list[str] | None = None


class ContentPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One part of a message."""

    kinds: ClassVar = CHAT_PARTS

    type: str
    text: str | None = None
    refusal: str | None = None
    prompt_cache_breakpoint: Any = None  # prefixes are cached by themselves
    cache_control: Any = None  # Anthropic's word for it, which routers send here as well


class ChatMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    refusal: Any = None
    annotations: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    audio: Any = None
    tool_calls: Any = None
    tool_call_id: Any = None
    function_call: Any = None
    provider_specific_fields: Any = None  # litellm's notes to itself in the answers that it sends back: passed over


def text_of(message: ChatMessage) -> str:
    content = message.content
    return content if isinstance(content, str) else "".join(part.text or part.refusal or "" for part in content or [])


class ChatFields(GenerationFields, kw_only=True, forbid_unknown_fields=True):
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None
    echo: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    documents: list[dict[str, str]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    chat_template: str | None = None
    tools: Any = None  # see server.tools
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    reasoning_effort: str | None = None  # for the chat template
    include_reasoning: bool | None = None
    enable_thinking: bool | None = None  # for the chat template
    verbosity: Any = None
    web_search_options: Any = None
    moderation: Any = None
    mm_processor_kwargs: Any = None


_NOTHING: tuple[Any, ...] = (None, [], {}, False)

# Field -> values that ask for nothing. Any other value is refused.
UNBUILT: dict[str, tuple[Any, ...]] = {
    "kv_transfer_params": _NOTHING,
    "vllm_xargs": _NOTHING,
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
    "moderation": (None,),
    "mm_processor_kwargs": _NOTHING,
}

_UNBUILT_OF_MESSAGES = ("audio", "function_call")


def check_stream_options(options: object, *, is_streamed: bool | None) -> None:
    """Raises ApiError 400 for options of a stream that was not asked for."""
    if options is not None and not is_streamed:
        raise invalid("stream_options", "stream_options needs stream: true", "invalid_value")


def refuse_unbuilt(fields: GenerationFields) -> None:
    """Raises ApiError for the first field that asks for something this version does not have, or that has no meaning
    without another."""
    check_stream_options(fields.stream_options, is_streamed=fields.stream)
    for name, neutral in UNBUILT.items():
        if getattr(fields, name, None) not in neutral:
            raise not_in_this_version(name)
    if fields.prompt_cache_options is not None:
        fields.prompt_cache_options.refuse_unbuilt()


def refuse_unbuilt_message(message: ChatMessage, place: int) -> None:
    for name in _UNBUILT_OF_MESSAGES:
        if getattr(message, name) not in (None, []):
            raise not_in_this_version(f"messages[{place}].{name}")
    if message.role == "function":
        raise not_in_this_version(f"messages[{place}].role", f"the role {message.role!r}")
