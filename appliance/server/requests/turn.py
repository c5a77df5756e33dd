"""One turn of a conversation, ready for the engine. Every chat dialect translates to ChatFields and ends here."""

from dataclasses import dataclass, replace

import msgspec

from appliance.engine.messages import SamplingParams
from appliance.requests.errors import ApiError, invalid
from appliance.requests.fields import ChatFields, refuse_unbuilt, text_of
from appliance.requests.sampling import LengthWish, SamplingRules, text_options
from appliance.requests.structured import constraint_of
from appliance.server.adapters.choice import choose_adapter
from appliance.server.output.message import MessageReader
from appliance.server.output.parsing import OutputReading
from appliance.server.requests.tools import tool_wish
from appliance.server.state import ServerState
from appliance.service.requests import TextRequest


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """`fields` are what was asked, in OpenAI's words; `request` is what the engine gets."""

    fields: ChatFields
    request: TextRequest
    reading: OutputReading

    def readers(self) -> list[MessageReader]:
        """One for each of the n sequences, new."""
        is_structured = self.request.constraint is not None
        return [self.reading.reader(is_structured=is_structured) for _ in range(self.request.sampling.n)]


async def prepare_turn(state: ServerState, fields: ChatFields, request_id: str) -> ChatTurn:
    """Raises ApiError 400 or 404 naming the field of ChatFields that is to blame."""
    await state.find_model(fields.model)
    refuse_unbuilt(fields)
    plan = state.plan.serving
    wish = tool_wish(fields, plan.parsers)
    prompt = await state.prompts.chat(fields, wish.shown)
    form = state.prompts.output
    is_open = form.begins_open(prompt.text or "", _continued(fields))
    reading = OutputReading(form, wish, is_open, fields.include_reasoning is not False)
    sampling = _sampling(state.sampling, fields, len(prompt.token_ids))
    request = TextRequest(
        request_id=request_id,
        prompt_token_ids=prompt.token_ids,
        sampling=sampling,
        constraint=reading.constraint(
            constraint_of(fields, plan.structured),
            plan.structured,
            thinks=state.prompts.thinks(fields),
        ),
        text=replace(text_options(fields), kept_special_tokens=reading.special_tokens),
        priority=state.sampling.check_priority(fields),
        cache_salt=fields.cache_salt,
        **await choose_adapter(state, fields),
    )
    return ChatTurn(fields, request, reading)


def _sampling(rules: SamplingRules, fields: ChatFields, num_prompt_tokens: int) -> SamplingParams:
    max_tokens, num_logprobs = _max_tokens(rules, fields, num_prompt_tokens), _num_logprobs(fields)
    try:
        return rules.params(fields, max_tokens, num_logprobs, fields.prompt_logprobs)
    except ApiError as error:
        if error.param == "logprobs":  # how many they are has a field of its own here
            error.param, error.message = "top_logprobs", f"top_{error.message}"
        raise


def _continued(fields: ChatFields) -> str:
    """The text of the message that the answer goes on with."""
    return text_of(fields.messages[-1]) if fields.continue_final_message else ""


def _max_tokens(rules: SamplingRules, fields: ChatFields, num_prompt_tokens: int) -> int:
    asked, field = fields.max_completion_tokens, "max_completion_tokens"
    if asked is None:
        asked, field = fields.max_tokens, "max_tokens"
    return rules.max_tokens(LengthWish(asked=asked, field=field, prompt_field="messages"), num_prompt_tokens)


def _num_logprobs(fields: ChatFields) -> int | None:
    if not fields.logprobs:
        if fields.top_logprobs:
            raise invalid("top_logprobs", "top_logprobs needs logprobs: true", "invalid_value")
        return None
    return fields.top_logprobs or 0


def capped(turn: ChatTurn, max_tokens: int) -> ChatTurn:
    """The turn with at most `max_tokens`. A context that leaves less ends it earlier, and the answer says so."""
    sampling = turn.request.sampling
    if sampling.max_tokens <= max_tokens:
        return turn
    sampling = msgspec.structs.replace(sampling, max_tokens=max_tokens)
    return replace(turn, request=replace(turn.request, sampling=sampling))
