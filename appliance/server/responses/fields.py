"""The body of POST /v1/responses, field by field, as in server.requests.fields."""

from typing import Any, ClassVar, Literal

import msgspec

from appliance.requests.errors import invalid, not_in_this_version
from appliance.requests.fields import PromptCacheOptions, check_stream_options
from appliance.server.responses import kinds


class InputPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One part of a message's content, or of a reasoning item."""

    kinds: ClassVar = kinds.PARTS

    type: str
    text: str | None = None
    refusal: str | None = None
    annotations: Any = None
    logprobs: Any = None
    prompt_cache_breakpoint: Any = None


class InputItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One item of a conversation; `type` says which fields it has. See `kind` for one without it."""

    kinds: ClassVar = kinds.ITEMS

    type: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[InputPart] | None = None
    id: str | None = None
    status: str | None = None
    phase: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None
    encrypted_content: str | None = None
    namespace: str | None = None
    caller: Any = None
    is_async: bool | None = msgspec.field(default=None, name="async")
    server_label: str | None = None
    tools: Any = None
    error: Any = None
    approval_request_id: str | None = None
    approve: bool | None = None
    reason: str | None = None

    @property
    def kind(self) -> str:
        """The type that is said or meant: a bare id refers to an item elsewhere."""
        return self.type or ("message" if self.role is not None or self.id is None else "item_reference")


class ToolFilter(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Some tools of a server: those that have one of the names, and only read where that is said."""

    tool_names: list[str] | None = None
    read_only: bool | None = None

    def has(self, name: str, *, is_read_only: bool) -> bool:
        named = self.tool_names is None or name in self.tool_names
        return named and (self.read_only is None or self.read_only == is_read_only)


class ApprovalRules(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    always: ToolFilter | None = None
    never: ToolFilter | None = None


class ResponseTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function, or a server of tools; `type` says which fields it has.

    defer_loading: there is no search among tools here, so all are shown at once.
    """

    kinds: ClassVar = kinds.TOOLS

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    output_schema: dict[str, Any] | None = None  # shown to the model with the description
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None
    is_async: bool | None = msgspec.field(default=None, name="async")
    server_label: str | None = None
    server_description: str | None = None  # for the caller alone
    server_url: str | None = None
    allowed_tools: list[str] | ToolFilter | None = None
    require_approval: Literal["always", "never"] | ApprovalRules | None = None
    headers: dict[str, str] | None = None
    authorization: str | None = None
    connector_id: str | None = None
    tunnel_id: str | None = None

    def needs_approval(self, name: str, *, is_read_only: bool) -> bool:
        """Whether the caller wants to be asked before a call; OpenAI's default is yes."""
        rules = self.require_approval
        if not isinstance(rules, ApprovalRules):
            return rules != "never"
        if rules.always is not None and rules.always.has(name, is_read_only=is_read_only):
            return True
        return rules.never is None or not rules.never.has(name, is_read_only=is_read_only)


class AllowedTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    kinds: ClassVar = kinds.TOOLS

    type: str
    name: str | None = None
    server_label: str | None = None


class ResponsesToolChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One function or server's tool by name, or some of them with a mode."""

    kinds: ClassVar = kinds.CHOICES

    type: str
    name: str | None = None
    server_label: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[AllowedTool] | None = None


class TextFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class TextFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """context: which earlier reasoning the model is shown; what its template does with it is the template's."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: str | None = None


class ResponsesStreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_obfuscation: bool | None = None


class ResponsesFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    input: str | list[InputItem]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    text: TextFields | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponsesToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None  # of servers
    reasoning: ReasoningFields | None = None
    include: list[str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = False
    stream_options: ResponsesStreamOptions | None = None

    # As in chat completions.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    priority: int | None = None
    cache_salt: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    # Standard fields that change nothing here.
    metadata: dict[str, str] | None = None
    user: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None

    # Known, and refused while they are not built; see UNBUILT.
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    moderation: Any = None
    access_programs: Any = None
    image: Any = None
    personality: str | None = None


COPIED = (
    "model", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "seed", "stop", "priority", "cache_salt", "chat_template_kwargs", "parallel_tool_calls",
)  # fmt: skip
_MOST = (1 << 31) - 1
LOGPROBS = "message.output_text.logprobs"
_INCLUDED = (LOGPROBS, "reasoning.encrypted_content")  # the second is taken: reasoning is not encrypted here

# Field -> values that ask for nothing. Any other value is refused.
UNBUILT: dict[str, tuple[Any, ...]] = {
    "conversation": (None,),
    "prompt": (None,),
    "context_management": (None, []),
    "moderation": (None,),
    "access_programs": (None, {}),
    "image": (None,),
    "personality": (None,),
    "truncation": (None, "disabled"),
}


def check_fields(fields: ResponsesFields) -> None:
    """Raises ApiError for the first field that asks for something this version does not have."""
    check_stream_options(fields.stream_options, is_streamed=fields.stream)
    for name, neutral in UNBUILT.items():
        if getattr(fields, name) not in neutral:
            raise not_in_this_version(name)
    if fields.prompt_cache_options is not None:
        fields.prompt_cache_options.refuse_unbuilt()
    if fields.reasoning is not None and fields.reasoning.mode not in (None, "standard"):
        raise not_in_this_version("reasoning.mode")
    for place, wanted in enumerate(fields.include or []):
        if wanted not in _INCLUDED:
            raise not_in_this_version(f"include[{place}]", f"including {wanted[:60]!r}")
    if fields.text is not None and fields.text.verbosity not in (None, "medium"):
        raise not_in_this_version("text.verbosity")
    if fields.background and fields.stream:
        raise not_in_this_version("stream", "streaming in the background")
    if fields.background and fields.store is False:
        raise invalid("background", "background needs store: nothing else would keep the answer", "invalid_value")
    for name in ("max_output_tokens", "max_tool_calls"):
        count: int | None = getattr(fields, name)
        if count is not None and not 1 <= count <= _MOST:
            raise invalid(name, f"{name} is {count}; it must be between 1 and {_MOST}", "invalid_value")
