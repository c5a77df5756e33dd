"""Token ids of a request. Long texts are worked on in a thread, so that streams keep flowing."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from appliance.catalog.content_format import ContentFormat, detect_content_format
from appliance.engine.prompt_embeds import PromptEmbeds
from appliance.plan.types import EnginePlan
from appliance.requests import degraded
from appliance.requests.errors import invalid
from appliance.requests.fields import ChatFields, ChatMessage, CompletionFields
from appliance.requests.history import HistoryStyle, has_tool_messages, rendered_messages
from appliance.requests.own_conversations import own_conversation
from appliance.text.control_tokens import ControlTokens
from appliance.text.conversation import ConversationEncoder
from appliance.text.errors import ChatTemplateError
from appliance.text.infill import encode_infill, infill_format
from appliance.text.output import load_output_format
from appliance.text.template import RESERVED_NAMES, ChatTemplate
from appliance.text.tokenizer import Tokenizer
from appliance.text.tool_style import ToolStyle, detect_tool_style

if TYPE_CHECKING:
    from appliance.requests.prompt_embeds import EmbedsReader

INLINE_CHARACTERS = 20_000  # about a millisecond of tokenization
MAX_PROMPTS = 1024
MAX_TEMPLATE_CHARACTERS = 64 << 10  # of a request's own template
_THINKING = "enable_thinking"

T = TypeVar("T")
Tools = Sequence[Mapping[str, Any]] | None


class Prompt(NamedTuple):
    """text: where there was one. embeds: of its first tokens, whose ids are 0 and of no account."""

    text: str | None
    token_ids: list[int]
    embeds: PromptEmbeds | None = None

    @property
    def known_ids(self) -> list[int] | None:
        """Its token ids; None where it has embeddings instead."""
        return self.token_ids if self.embeds is None else None


class PromptMaker:
    """Tokenizer, chat template and output format of one model."""

    def __init__(self, plan: EnginePlan, tokenizer: Tokenizer) -> None:
        """Raises ChatTemplateError for a planned template with a syntax error, ApplianceError for a missing parser."""
        parsers = plan.serving.parsers
        self.output = load_output_format(parsers.tools, parsers.reasoning)
        self._tokenizer = tokenizer
        self._context = plan.model.max_model_len
        self._model = plan.model
        self._truncation = plan.serving.requests.truncated_prompts
        self._content_format = plan.model.chat_template_content_format
        named, special = tokenizer.identity.chat_templates, tokenizer.identity.special_tokens
        source = named.get(plan.model.chat_template or "", plan.model.chat_template)
        self._template = ChatTemplate(source, special) if source else None
        # A checkpoint may bring a second template for requests with tools.
        with_tools = named.get("tool_use") if source == named.get("default") else None
        self._tool_template = ChatTemplate(with_tools, special) if with_tools else None
        self._tool_styles: dict[ChatTemplate, ToolStyle] = {}
        self._trusts_templates = plan.serving.requests.trust_request_chat_template
        self._infill = infill_format(tokenizer)
        self._control = ControlTokens(tokenizer)
        self._are_spellings_control = plan.serving.requests.parse_message_tokens

    async def completion(self, fields: CompletionFields) -> list[Prompt]:
        """One entry a prompt. Raises ApiError 400."""
        embeds = fields.prompt_embeds or []
        embeds = [embeds] if isinstance(embeds, str) else embeds
        given, suffix = _split(fields.prompt, is_needed=not embeds), fields.suffix
        if (count := len(embeds) + len(given)) > MAX_PROMPTS:
            raise invalid("prompt", f"prompt has {count} prompts; {MAX_PROMPTS} are allowed", "invalid_value")
        prompts = [Prompt(None, [0] * len(each), each) for each in await self._embeds(fields)]
        for each in given:
            if suffix:
                prompts.append(Prompt(each if isinstance(each, str) else None, await self._encode_infill(each, fields)))
            elif isinstance(each, str):
                prompts.append(Prompt(each, await self._encode(each, fields.add_special_tokens)))
            else:
                prompts.append(Prompt(None, each))
        return [self._cut(each, fields.truncate_prompt_tokens) for each in prompts]

    async def _embeds(self, fields: CompletionFields) -> list[PromptEmbeds]:
        """A server that no one sends embeddings imports nothing that reads their numbers."""
        if not fields.prompt_embeds:
            return []
        reads: type[EmbedsReader] = import_module("appliance.requests.prompt_embeds").EmbedsReader
        return await reads(self._model).read(fields)

    def of_embeds(self, embeds: PromptEmbeds, text: str | None, fields: CompletionFields) -> Prompt:
        """Returns a prompt of embeddings. text: what they stand for, where it is known. Raises ApiError 400."""
        return self._cut(Prompt(text, [0] * len(embeds), embeds), fields.truncate_prompt_tokens)

    def _cut(self, prompt: Prompt, truncate: int | None) -> Prompt:
        token_ids, embeds = self._checked(prompt.token_ids, truncate, "prompt"), prompt.embeds
        return Prompt(prompt.text, token_ids, None if embeds is None else embeds.last(len(token_ids)))

    async def _encode_infill(self, prefix: str | list[int], fields: CompletionFields) -> list[int]:
        infill, suffix = self._infill, fields.suffix or ""
        if infill is None:
            message = "this model has no tokens for filling in, so it takes no suffix"
            raise invalid("suffix", message, "unsupported_parameter")
        if not isinstance(prefix, str):
            raise invalid("suffix", "suffix needs a prompt that is text, not token ids", "invalid_value")
        if fields.truncate_prompt_tokens is not None:
            raise invalid("truncate_prompt_tokens", "a prompt with a suffix cannot be truncated", "invalid_value")
        if fields.echo and fields.logprobs is not None:
            raise invalid("echo", "echo with logprobs has no meaning with a suffix", "invalid_value")

        def encode() -> list[int]:
            add_special_tokens = fields.add_special_tokens
            return encode_infill(self._tokenizer, infill, prefix, suffix, add_special_tokens=add_special_tokens)

        return await _here_or_in_thread(encode, len(prefix) + len(suffix))

    async def chat(self, fields: ChatFields, tools: Tools = None) -> Prompt:
        """The rendered conversation. Raises ApiError 400, also when the model has no chat template."""
        text, token_ids = await self.chat_tokens(fields, tools, add_special_tokens=fields.add_special_tokens)
        return Prompt(text, self._checked(token_ids, fields.truncate_prompt_tokens, "messages"))

    async def chat_tokens(self, fields: ChatFields, tools: Tools, *, add_special_tokens: bool) -> tuple[str, list[int]]:
        """The rendered conversation, whatever its length. Raises ApiError 400."""
        own = self._tokenizer.conversations
        if own is not None:
            return await self._encode_own(own, fields, tools, add_special_tokens=add_special_tokens)
        text, cut = await self._render(fields, tools)

        def encode() -> list[int]:
            return self._control.encode(text, cut, add_special_tokens=add_special_tokens)

        token_ids = await _here_or_in_thread(encode, len(text))
        return text.replace(cut, "") if cut else text, token_ids

    async def _encode_own(
        self, own: ConversationEncoder, fields: ChatFields, tools: Tools, *, add_special_tokens: bool
    ) -> tuple[str, list[int]]:
        _check_variables(fields)
        conversation = own_conversation(fields, tools, own.name, add_special_tokens=add_special_tokens)

        def encode() -> tuple[str, list[int]]:
            token_ids = own.encode(conversation)
            return self._tokenizer.decode(token_ids), token_ids

        try:
            return await _here_or_in_thread(encode, _size(fields.messages))
        except ChatTemplateError as error:
            raise invalid("messages", str(error), "chat_template_failed") from error

    async def _render(self, fields: ChatFields, tools: Tools) -> tuple[str, str]:
        """Returns the text, and the cut in it (see ControlTokens). tools: shown in the prompt, in OpenAI's form."""
        template, content_format = self._template, self._content_format
        if fields.chat_template is not None:
            template, content_format = await self._request_template(fields.chat_template)
        elif tools and self._tool_template is not None:
            template = self._tool_template
        if template is None:
            raise invalid(
                "messages",
                "this model has no chat template, so it cannot chat; use /v1/completions, or set model.chat_template",
                "no_chat_template",
            )
        style = await self._style(template, fields, content_format)
        messages = rendered_messages(fields.messages, style)
        _check_variables(fields)

        def render() -> tuple[str, str]:
            given: Any = [messages, tools, fields.documents, _variables(fields)]
            given, cut = (given, "") if self._are_spellings_control else self._control.cut(given)
            said, shown, documents, variables = given
            text = template.render(
                said,
                add_generation_prompt=fields.add_generation_prompt,
                continue_final_message=fields.continue_final_message,
                tools=shown,
                documents=documents,
                variables=variables,
            )
            return text, cut

        try:
            return await _here_or_in_thread(render, _size(fields.messages))
        except ChatTemplateError as error:
            raise invalid("messages", str(error), "chat_template_failed") from error
        except ValueError as error:
            raise invalid("messages", str(error), "invalid_value") from error

    def thinks(self, fields: ChatFields) -> bool:
        """Returns True if the template lets the model reason before it answers, which is its default."""
        template = self._template
        if template is None or _THINKING not in template.source:
            return False
        return _variables(fields).get(_THINKING) is not False

    async def _style(self, template: ChatTemplate, fields: ChatFields, content_format: ContentFormat) -> HistoryStyle:
        as_parts = content_format == "openai"
        if not has_tool_messages(fields.messages):
            return HistoryStyle(as_parts)
        tools = self._tool_styles.get(template)
        if tools is None:
            tools = await asyncio.to_thread(detect_tool_style, template)
            if fields.chat_template is None:  # ours; a request's own is not kept
                self._tool_styles[template] = tools
        return HistoryStyle(as_parts, tools, bool(self.output.tools and self.output.tools.short_ids))

    async def _request_template(self, source: str) -> tuple[ChatTemplate, ContentFormat]:
        """A template of the request's own, in the same sandbox."""
        if not self._trusts_templates:
            message = "this server takes no chat templates from requests (model.trust_request_chat_template)"
            raise invalid("chat_template", message, "not_allowed")
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            message = f"chat_template has {len(source)} characters; {MAX_TEMPLATE_CHARACTERS} are allowed"
            raise invalid("chat_template", message, "invalid_value")
        try:
            template = await asyncio.to_thread(ChatTemplate, source, self._tokenizer.identity.special_tokens)
        except ChatTemplateError as error:
            raise invalid("chat_template", str(error), "invalid_value") from error
        return template, detect_content_format(source)

    async def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        def encode() -> list[int]:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

        return await _here_or_in_thread(encode, len(text))

    def _checked(self, token_ids: list[int], truncate: int | None, field: str) -> list[int]:
        """The last `truncate` tokens (-1: what the context takes), never none."""
        if truncate is not None:
            if truncate != -1 and not 1 <= truncate <= self._context:
                message = f"truncate_prompt_tokens is {truncate}; it must be -1 or from 1 to {self._context}"
                raise invalid("truncate_prompt_tokens", message, "invalid_value")
            token_ids = self._truncated(token_ids, self._context - 1 if truncate == -1 else truncate)
        if not token_ids:
            raise invalid(field, f"{field} is empty: it has no tokens", "invalid_value")
        return token_ids

    def _truncated(self, token_ids: list[int], most: int) -> list[int]:
        if len(token_ids) <= most:
            return token_ids
        if self._truncation == "error":
            message = f"the prompt has {len(token_ids)} tokens, and this server cuts no prompt, here to {most}"
            raise invalid("truncate_prompt_tokens", message, "prompt_truncated")
        degraded.note("truncated_prompt", is_logged=self._truncation == "warn")
        return token_ids[-most:]


async def _here_or_in_thread(work: Callable[[], T], size: int) -> T:
    return work() if size <= INLINE_CHARACTERS else await asyncio.to_thread(work)


def _split(prompt: str | Sequence[str | int | list[int]] | None, *, is_needed: bool) -> list[str | list[int]]:
    """One prompt or several, each text or token ids. is_needed: there is no other; else an empty one is none."""
    if not prompt and not is_needed:
        return []
    if prompt is None:
        raise invalid("prompt", "the field 'prompt' is missing", "missing_required_parameter")
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("prompt", "prompt is an empty list", "invalid_value")
    if all(isinstance(each, int) for each in prompt):
        return [_token_ids(prompt)]
    if any(isinstance(each, int) for each in prompt):
        raise invalid("prompt", "prompt mixes token ids with texts or lists", "invalid_type")
    return [each if isinstance(each, str) else _token_ids(each) for each in prompt if not isinstance(each, int)]


def _token_ids(values: Sequence[Any]) -> list[int]:
    token_ids: list[int] = list(values)
    for token_id in token_ids:
        if not 0 <= token_id < 1 << 31:
            raise invalid("prompt", f"prompt has the token id {token_id}, which no vocabulary has", "invalid_value")
    return token_ids


def _variables(fields: ChatFields) -> dict[str, Any]:
    """Extra names for the template; what a request says in a field of its own wins."""
    thinking = fields.enable_thinking  # some templates have the shorter name
    own = {_THINKING: thinking, "thinking": thinking, "reasoning_effort": fields.reasoning_effort}
    stated = {name: value for name, value in own.items() if value is not None}
    return {**(fields.chat_template_kwargs or {}), **stated}


def _check_variables(fields: ChatFields) -> None:
    if fields.continue_final_message and fields.add_generation_prompt:
        message = "continue_final_message and add_generation_prompt cannot both be true"
        raise invalid("continue_final_message", message, "invalid_value")
    if fields.continue_final_message and fields.messages and fields.messages[-1].role != "assistant":
        message = "continue_final_message needs a last message of the assistant"
        raise invalid("continue_final_message", message, "invalid_value")
    for name in fields.chat_template_kwargs or {}:
        if name in RESERVED_NAMES or name.startswith("_"):
            message = f"chat_template_kwargs cannot set {name[:40]!r}"
            raise invalid("chat_template_kwargs", message, "invalid_value")


def _size(messages: Sequence[ChatMessage]) -> int:
    """About how much there is to render: characters, and some for every message."""
    size = 64 * len(messages)
    for message in messages:
        parts = message.content
        size += len(parts) if isinstance(parts, str) else sum(len(part.text or "") for part in parts or [])
    return size
