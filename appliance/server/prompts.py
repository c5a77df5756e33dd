"""From what a request says to token ids. Long texts are worked on in a thread, so that streams keep flowing."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from appliance.catalog.templates import ContentFormat, detect_content_format
from appliance.plan.types import EnginePlan
from appliance.server.errors import invalid, not_in_this_version
from appliance.server.fields import ChatFields, ChatMessage, CompletionFields, refuse_unbuilt_message
from appliance.text.errors import ChatTemplateError
from appliance.text.infill import encode_infill, infill_format
from appliance.text.template import RESERVED_NAMES, ChatTemplate
from appliance.text.tokenizer import Tokenizer

INLINE_CHARACTERS = 20_000  # about a millisecond of tokenization
MAX_PROMPTS = 1024
MAX_MESSAGES = 10_000
MAX_TEMPLATE_CHARACTERS = 64 << 10  # of a request's own template
_ROLES = ("system", "developer", "user", "assistant")

T = TypeVar("T")
Prompt = tuple[str | None, list[int]]  # the text where there was one, and its tokens


class PromptMaker:
    """Tokenizer and chat template of one model."""

    def __init__(self, plan: EnginePlan, tokenizer: Tokenizer) -> None:
        """Raises ChatTemplateError when the planned template has a syntax error."""
        self._tokenizer = tokenizer
        self._context = plan.model.max_model_len
        self._content_format = plan.model.chat_template_content_format
        source = plan.model.chat_template
        self._template = ChatTemplate(source, tokenizer.identity.special_tokens) if source else None
        self._trusts_templates = plan.serving.trust_request_chat_template
        self._infill = infill_format(tokenizer)

    async def completion(self, fields: CompletionFields) -> list[Prompt]:
        """One entry a prompt. Raises ApiError 400."""
        given, suffix = _split(fields.prompt), fields.suffix
        if len(given) > MAX_PROMPTS:
            raise invalid("prompt", f"prompt has {len(given)} prompts; {MAX_PROMPTS} are allowed", "invalid_value")
        prompts: list[Prompt] = []
        for each in given:
            if suffix:
                prompts.append((each if isinstance(each, str) else None, await self._encode_infill(each, fields)))
            elif isinstance(each, str):
                prompts.append((each, await self._encode(each, fields.add_special_tokens)))
            else:
                prompts.append((None, each))
        truncate = fields.truncate_prompt_tokens
        return [(text, self._checked(token_ids, truncate, "prompt")) for text, token_ids in prompts]

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

    async def chat(self, fields: ChatFields) -> Prompt:
        """The rendered conversation. Raises ApiError 400, also when the model has no chat template."""
        text = await self.render(fields)
        token_ids = await self._encode(text, fields.add_special_tokens)
        return text, self._checked(token_ids, fields.truncate_prompt_tokens, "messages")

    async def render(self, fields: ChatFields) -> str:
        template, content_format = self._template, self._content_format
        if fields.chat_template is not None:
            template, content_format = await self._request_template(fields.chat_template)
        if template is None:
            raise invalid(
                "messages",
                "this model has no chat template, so it cannot chat; use /v1/completions, or set model.chat_template",
                "no_chat_template",
            )
        messages = _messages(fields.messages, as_parts=content_format == "openai")
        _check_variables(fields)

        def render() -> str:
            return template.render(
                messages,
                add_generation_prompt=fields.add_generation_prompt,
                continue_final_message=fields.continue_final_message,
                documents=fields.documents,
                variables=fields.chat_template_kwargs,
            )

        try:
            return await _here_or_in_thread(render, _size(fields.messages))
        except ChatTemplateError as error:
            raise invalid("messages", str(error), "chat_template_failed") from error

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
            token_ids = token_ids[-(self._context - 1 if truncate == -1 else truncate) :]
        if not token_ids:
            raise invalid(field, f"{field} is empty: it has no tokens", "invalid_value")
        return token_ids


async def _here_or_in_thread(work: Callable[[], T], size: int) -> T:
    return work() if size <= INLINE_CHARACTERS else await asyncio.to_thread(work)


def _split(prompt: str | Sequence[str | int | list[int]]) -> list[str | list[int]]:
    """One prompt or several, each text or token ids."""
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


def _messages(messages: Sequence[ChatMessage], *, as_parts: bool) -> list[dict[str, Any]]:
    if not messages:
        raise invalid("messages", "messages is empty; at least one message is needed", "invalid_value")
    if len(messages) > MAX_MESSAGES:
        raise invalid("messages", f"messages has {len(messages)} messages; {MAX_MESSAGES} are allowed", "invalid_value")
    return [_message(message, place, as_parts) for place, message in enumerate(messages)]


def _message(message: ChatMessage, place: int, as_parts: bool) -> dict[str, Any]:
    refuse_unbuilt_message(message, place)
    if message.role not in _ROLES:
        allowed = ", ".join(_ROLES)
        raise invalid(
            f"messages[{place}].role",
            f"the role is {message.role[:40]!r}; it must be one of {allowed}",
            "invalid_value",
        )
    texts = _texts(message, place)
    content: Any = [{"type": "text", "text": text} for text in texts] if as_parts else "\n".join(texts)
    # Templates know `system`; OpenAI renamed it to `developer` for some models.
    rendered = {"role": "system" if message.role == "developer" else message.role, "content": content}
    return {**rendered, "name": message.name} if message.name is not None else rendered


def _texts(message: ChatMessage, place: int) -> list[str]:
    where = f"messages[{place}].content"
    if isinstance(message.content, str):
        return [message.content]
    if message.content is None:
        raise invalid(where, f"{where} is missing", "missing_required_parameter")
    if not message.content:
        raise invalid(where, f"{where} is an empty list", "invalid_value")
    texts: list[str] = []
    for number, part in enumerate(message.content):
        if part.type not in ("text", "input_text"):
            raise not_in_this_version(f"{where}[{number}].type", f"content of type {part.type[:40]!r}")
        if part.text is None:
            raise invalid(f"{where}[{number}].text", f"{where}[{number}] has no text", "missing_required_parameter")
        texts.append(part.text)
    return texts


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
