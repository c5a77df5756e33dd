"""From what a caller asks for to requests of the service, by the rules of the plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from appliance.engine import given_processors
from appliance.offline.errors import InvalidRequestError
from appliance.offline.fields import completion_fields
from appliance.offline.params import LoRARequest, SamplingParams
from appliance.offline.prompts import Given
from appliance.plan.types import EnginePlan
from appliance.requests.fields import ChatFields, ChatMessage, CompletionFields
from appliance.requests.prompt_embeds import EmbedsReader
from appliance.requests.prompts import Prompt, PromptMaker
from appliance.requests.sampling import LengthWish, SamplingRules, text_options
from appliance.requests.structured import constraint_of
from appliance.service.requests import TextRequest
from appliance.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How a conversation becomes a prompt."""

    tools: Sequence[Mapping[str, Any]] | None = None
    documents: Sequence[Mapping[str, str]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of one conversation, in OpenAI's form."""

    messages: Any
    options: ChatOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One request of a caller."""

    request_id: str
    prompt: Given | Conversation
    params: SamplingParams
    lora: LoRARequest | None = None
    priority: int = 0


@dataclass(slots=True)
class ReadyRequest:
    """A request that is ready for the service, until `close`. prompt: its text where there was one."""

    wish: Wish
    prompt: str | None
    request: TextRequest
    processors: list[str] = field(default_factory=list)

    def close(self) -> None:
        for name in self.processors:
            given_processors.take_back(name)


class WishMaker:
    """The rules of one plan, as a caller in its own process is under them: what a server refuses of strangers (their
    own chat templates) is the caller's own here."""

    def __init__(self, plan: EnginePlan, tokenizer: Tokenizer) -> None:
        serving = plan.serving
        trusting = msgspec.structs.replace(serving.requests, trust_request_chat_template=True)
        own = msgspec.structs.replace(plan, serving=msgspec.structs.replace(serving, requests=trusting))
        self.prompts = PromptMaker(own, tokenizer)
        self.rules = SamplingRules(own, tokenizer)
        self._embeds = EmbedsReader(plan.model)
        self._structured = serving.structured
        self._takes_processors = plan.parallel.replicas == 1

    async def asked(self, wish: Wish) -> ReadyRequest:
        """Its adapter is named when it is sent (see OfflineAdapters). Raises ApiError, InvalidRequestError."""
        processors = self._named(wish.params)
        try:
            fields = completion_fields(wish.params, processors, wish.priority)
            prompt = await self.prompt(wish.prompt, fields)
            request = self._request(wish, fields, prompt)
        except BaseException:
            for name in processors:
                given_processors.take_back(name)
            raise
        return ReadyRequest(wish, prompt.text, request, processors)

    async def prompt(self, given: Given | Conversation, fields: CompletionFields) -> Prompt:
        """Returns a prompt's text and tokens, cut as the fields say. Raises ApiError, InvalidRequestError."""
        if isinstance(given, Conversation):
            return await self.chat(given, fields.truncate_prompt_tokens)
        if given.truncate is not None:
            fields = msgspec.structs.replace(fields, truncate_prompt_tokens=given.truncate)
        if given.embeds is not None:
            self._embeds.check_fields(fields)
            embeds = self._embeds.of_array(given.embeds, "prompt_embeds")
            return self.prompts.of_embeds(embeds, given.text, fields)
        prompt = given.text if given.token_ids is None else list(given.token_ids)
        assert prompt is not None
        asked = msgspec.structs.replace(fields, prompt=prompt, add_special_tokens=given.add_special_tokens)
        [read] = await self.prompts.completion(asked)
        return Prompt(given.text, read.token_ids)

    async def chat(self, conversation: Conversation, truncate: int | None = None) -> Prompt:
        """Renders a conversation. Raises ApiError, InvalidRequestError."""
        options = conversation.options
        fields = ChatFields(
            messages=_messages(conversation.messages),
            chat_template=options.chat_template,
            chat_template_kwargs=None if options.chat_template_kwargs is None else dict(options.chat_template_kwargs),
            documents=None if options.documents is None else [dict(each) for each in options.documents],
            add_generation_prompt=options.add_generation_prompt,
            continue_final_message=options.continue_final_message,
            add_special_tokens=options.add_special_tokens,
            truncate_prompt_tokens=truncate,
        )
        return await self.prompts.chat(fields, options.tools)

    def _request(self, wish: Wish, fields: CompletionFields, prompt: Prompt) -> TextRequest:
        # No more than the context leaves: an offline caller gets what fits, as from vLLM.
        wanted = LengthWish(asked=None, field="max_tokens", prompt_field="prompt", default=wish.params.max_tokens)
        max_tokens = self.rules.max_tokens(wanted, len(prompt.token_ids))
        given = msgspec.structs.replace(fields, min_tokens=min(fields.min_tokens or 0, max_tokens))
        return TextRequest(
            request_id=wish.request_id,
            prompt_token_ids=prompt.token_ids,
            prompt_embeds=prompt.embeds,
            sampling=self.rules.params(given, max_tokens, fields.logprobs, fields.prompt_logprobs),
            constraint=constraint_of(fields, self._structured),
            text=replace(text_options(fields), detokenize=wish.params.detokenize),
            priority=self.rules.check_priority(fields),
            cache_salt=wish.prompt.cache_salt if isinstance(wish.prompt, Given) else None,
        )

    def _named(self, params: SamplingParams) -> list[str]:
        processors = params.logits_processors or []
        if processors and not self._takes_processors:
            message = "logits processors that are objects need the engine in this process, and replicas have their own"
            raise InvalidRequestError(message, param="logits_processors")
        return [given_processors.give(each) for each in processors]


def _messages(given: Any) -> list[ChatMessage]:
    try:
        return msgspec.convert(given, list[ChatMessage], strict=True)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"messages: {error}", param="messages") from error
