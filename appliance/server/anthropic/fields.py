"""The bodies of /v1/messages and /v1/messages/count_tokens, field by field, as in server.requests.fields."""

from typing import Any, ClassVar, Literal

import msgspec

from appliance.requests.errors import not_in_this_version
from appliance.server.anthropic import kinds


class ContentBlock(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One block of a message; `type` says which fields it has."""

    kinds: ClassVar = kinds.BLOCKS

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
    toolset_name: str | None = None


class InputMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """clear_at: a system message that ends with the turn it stands in is not shown once another turn has begun."""

    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]
    clear_at: Literal["next_user_message", "never"] | None = None
    output_config: Any = None


class ToolDefinition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """defer_loading: there is no search among tools here, so all are shown at once."""

    kinds: ClassVar = kinds.TOOLS

    name: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None
    description: str | None = None
    strict: bool | None = None
    cache_control: Any = None
    input_examples: list[dict[str, Any]] | None = None  # shown to the model with the description
    eager_input_streaming: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None


class MessagesToolChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """adaptive: the model thinks where it finds that it should, which may be nowhere."""

    kinds: ClassVar = kinds.THINKING

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None  # a wish that no model here was trained to keep; max_tokens bounds all
    display: Literal["summarized", "omitted"] | None = None
    block_binding: Any = None  # of signatures, of which ours are empty and none is checked


class Metadata(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    user_id: str | None = None


class OutputFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """effort: for chat templates that know it."""

    effort: str | None = None
    format: OutputFormat | None = None
    task_budget: Any = None


class EditAmount(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An amount of tokens, tool uses or turns with thinking; `value` is None for `all`."""

    type: Literal["input_tokens", "tool_uses", "thinking_turns", "all"]
    value: int | None = None


class ContextEdit(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One edit of earlier messages; `type` says which fields it has. See anthropic.context."""

    kinds: ClassVar = kinds.EDITS

    type: str
    trigger: EditAmount | None = None
    keep: EditAmount | Literal["all"] | None = None
    clear_at_least: EditAmount | None = None
    exclude_tools: list[str] | None = None
    clear_tool_inputs: bool | list[str] | None = None


class ContextManagement(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    edits: list[ContextEdit] | None = None


class Diagnostics(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The request asks for diagnostics of the prompt cache. The answer is always Anthropic's `unavailable`."""

    previous_message_id: str | None = None


class PromptFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields that make the prompt: the body of count_tokens."""

    model: str
    messages: list[InputMessage]
    system: str | list[ContentBlock] | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: Thinking | None = None
    cache_control: Any = None
    output_config: OutputConfig | None = None
    context_management: ContextManagement | None = None

    # Known, and refused while they are not built; see UNBUILT.
    mcp_servers: Any = None
    speed: Literal["standard", "fast"] | None = None
    compaction: Any = None
    billing_policy: Any = None


class MessagesFields(PromptFields, kw_only=True, forbid_unknown_fields=True):
    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    diagnostics: Diagnostics | None = None

    # As above.
    inference_geo: str | None = None
    container: Any = None
    fallbacks: Any = None
    fallback_credit_token: Any = None
    thread: Any = None


# Field -> values that ask for nothing. Any other value is refused.
UNBUILT: dict[str, tuple[Any, ...]] = {
    "mcp_servers": (None, []),
    "container": (None,),
    "inference_geo": (None,),
    "speed": (None, "standard"),
    "compaction": (None,),
    "billing_policy": (None, {"type": "billing_policy"}, {"type": "billing_policy", "bill_to": "self"}),
    "fallbacks": (None, [], "default"),  # other models are for answers that a policy declines, of which there are none
    "fallback_credit_token": (None,),
    "thread": (None,),
}


def refuse_unbuilt(fields: PromptFields) -> None:
    """Raises ApiError for the first field that asks for something this version does not have."""
    for name, neutral in UNBUILT.items():
        if getattr(fields, name, None) not in neutral:
            raise not_in_this_version(name)
    if fields.output_config is not None and fields.output_config.task_budget is not None:
        raise not_in_this_version("output_config.task_budget")
    for place, message in enumerate(fields.messages):
        if message.output_config not in (None, {}):
            raise not_in_this_version(f"messages[{place}].output_config")
    for place, tool in enumerate(fields.tools or []):
        if "direct" not in (tool.allowed_callers or ["direct"]):
            raise not_in_this_version(f"tools[{place}].allowed_callers", "a tool that the model may not call itself")
