"""A request's conversation for a tokenizer that writes conversations itself, without a chat template."""

from collections.abc import Mapping, Sequence
from typing import Any

from appliance.requests.errors import invalid
from appliance.requests.fields import ChatFields
from appliance.requests.history import HistoryStyle, rendered_messages
from appliance.text.conversation import ChatHistory

_STYLE = HistoryStyle(as_parts=True, short_ids=True)


def own_conversation(
    fields: ChatFields, tools: Sequence[Mapping[str, Any]] | None, name: str, *, add_special_tokens: bool
) -> ChatHistory:
    """Returns the messages and tools of a request. Raises ApiError 400.

    Fields that only templates take are refused, and a last message that nobody would answer. name: the encoder's, for
    errors.
    """
    messages = rendered_messages(fields.messages, _STYLE)
    of_templates: dict[str, object] = {
        "chat_template": fields.chat_template is not None,
        "chat_template_kwargs": fields.chat_template_kwargs,
        "documents": fields.documents,
        "enable_thinking": fields.enable_thinking is not None,
        "add_special_tokens": add_special_tokens,
    }
    for field, is_given in of_templates.items():
        if is_given:
            message = f"{field} is for chat templates, and conversations here have none ({name})"
            raise invalid(field, message, "unsupported_parameter")
    _check_last(fields, str(messages[-1]["role"]))
    return ChatHistory(
        messages,
        tools,
        is_continued=fields.continue_final_message,
        reasoning_effort=fields.reasoning_effort,
    )


def _check_last(fields: ChatFields, role: str) -> None:
    """The model's own format begins no answer after an answer."""
    if fields.continue_final_message or role != "assistant" or not fields.add_generation_prompt:
        return
    message = "the last message is the assistant's, and add_generation_prompt is true; set continue_final_message"
    raise invalid("messages", message, "invalid_value")
