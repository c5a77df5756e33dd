"""Finds where the last message ends in a rendered conversation, so that an answer can continue it.

A search for the content itself may fail: `|` is in end tokens too, and a template may trim the content or write it as
JSON. So the conversation is rendered a second time with marks in the content. The text after the last mark is what the
template writes after a message. A missing mark shows that the template leaves out text, as many do with earlier
reasoning.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from appliance.text.errors import ChatTemplateError

Message = Mapping[str, Any]
_LEAST_ZEROS = 16
_MOST_MARKS = 100  # inside the content; enough to find text that a template leaves out
_BEFORE_TAG = re.compile(r"(?<=[^\s<\[\u25c1])(?=\s*[<\[\u25c1])")  # where text ends and a tag may begin: `foo</think>`


def open_final_message(render: Callable[[Sequence[Message]], str], messages: Sequence[Message]) -> str:
    """Renders the conversation up to the end of the last message's content.

    render: gives the same text for the same messages. Raises ChatTemplateError if the last message has no text or has
    tool calls, if the template leaves out a part of it, or if its end cannot be found.
    """
    _check_can_be_continued(messages[-1])
    whole = render(messages)
    mark = _mark_for(whole)
    marked, num_marks = _marked(messages[-1], mark)
    *before, after = render([*messages[:-1], marked]).split(mark)
    if not before:
        raise ChatTemplateError("the chat template does not show the last message, so it cannot be continued")
    if len(before) < num_marks:
        raise ChatTemplateError("the chat template leaves out a part of the last message, so it cannot be continued")
    # In the rendering without marks, the template may have trimmed the end of the content.
    if whole not in ("".join([*before, after]), "".join([*before[:-1], before[-1].rstrip(), after])):
        raise ChatTemplateError(
            "the chat template does not let one tell where the text of the last message ends, so it cannot be continued"
        )
    return whole[: len(whole) - len(after)]


def _check_can_be_continued(message: Message) -> None:
    content = message.get("content")
    texts = [_text_of(part) for part in content] if isinstance(content, list) else [content]
    if not any(isinstance(text, str) and text for text in texts):
        raise ChatTemplateError("continue_final_message needs text in the last message")
    if message.get("tool_calls"):
        raise ChatTemplateError("a last message with tool calls cannot be continued: it ends with them, not with text")


def _mark_for(text: str) -> str:
    """Returns a mark that is not in the text, and that `upper`, `trim`, `escape` and `tojson` do not change.

    It is a one followed by zeros: such marks cannot overlap, so two adjacent ones are always found as two.
    """
    longest = max(map(len, re.findall("0+", text)), default=0)
    return "1" + "0" * max(longest + 1, _LEAST_ZEROS)


def _marked(message: Message, mark: str) -> tuple[Message, int]:
    """Returns the message with marks inside and after its last text, and the number of marks."""
    content = message["content"]
    if isinstance(content, str):
        text, num_marks = _BEFORE_TAG.subn(mark, content, _MOST_MARKS)
        return {**message, "content": text + mark}, num_marks + 1
    last = max(place for place, part in enumerate(content) if isinstance(_text_of(part), str))
    text, num_marks = _BEFORE_TAG.subn(mark, content[last]["text"], _MOST_MARKS)
    part = {**content[last], "text": text + mark}
    return {**message, "content": [*content[:last], part, *content[last + 1 :]]}, num_marks + 1


def _text_of(part: Any) -> Any:
    return part.get("text") if isinstance(part, Mapping) else None
