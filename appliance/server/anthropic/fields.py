"""The bodies of /v1/messages and /v1/messages/count_tokens, field by field, as in server.fields."""

from typing import Any, Literal

import msgspec

from appliance.server.http.errors import not_in_this_version


class ContentBlock(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One block of a message; `type` says which fields it has."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None  # ours are empty, and nothing is checked
    data: str | None = None  # of redacted thinking, which is left out
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    caller: Any = None
    tool_use_id: str | None = None
    content: "str | list[ContentBlock] | None" = None
    is_error: bool | None = None
    cache_control: Any = None  # prefixes are cached by themselves
    citations: Any = None
    source: Any = None
    title: Any = None
    context: Any = None


class InputMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]


class ToolDefinition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    input_schema: dict[str, Any] | None = None
    type: str | None = None
    description: str | None = None
    strict: bool | None = None
    cache_control: Any = None
    input_examples: Any = None
    eager_input_streaming: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: Any = None


class ToolChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None  # a wish that no model here was trained to keep; max_tokens bounds all
    display: Literal["summarized", "omitted"] | None = None


class Metadata(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    user_id: str | None = None


class OutputFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """effort: for chat templates that know it."""

    effort: str | None = None
    format: OutputFormat | None = None


class PromptFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What makes the prompt: the body of count_tokens."""

    model: str
    messages: list[InputMessage]
    system: str | list[ContentBlock] | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    cache_control: Any = None
    output_config: OutputConfig | None = None
    mcp_servers: Any = None
    context_management: Any = None


class MessagesFields(PromptFields, kw_only=True, forbid_unknown_fields=True):
    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    inference_geo: str | None = None
    speed: Literal["standard", "fast"] | None = None
    container: Any = None
    diagnostics: Any = None


# Field -> values that ask for nothing. Any other value is refused.
UNBUILT: dict[str, tuple[Any, ...]] = {
    "mcp_servers": (None, []),
    "context_management": (None, {}),
    "container": (None,),
    "diagnostics": (None,),
    "inference_geo": (None,),
    "speed": (None, "standard"),
}


def refuse_unbuilt(fields: PromptFields) -> None:
    """Raises ApiError for the first field that asks for something this version does not have."""
    for name, neutral in UNBUILT.items():
        if getattr(fields, name, None) not in neutral:
            raise not_in_this_version(name)
