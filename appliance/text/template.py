"""Chat templates: a conversation to the text a model was trained on."""

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from appliance.text.errors import ChatTemplateError
from appliance.text.template_sandbox import BoundedEnvironment, render_bounded

Message = Mapping[str, Any]
RESERVED_NAMES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class ChatTemplate:
    """A compiled template. Safe to use from several threads."""

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        """special_tokens: "bos_token" and the like, as text. Raises ChatTemplateError for a syntax error."""
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        try:
            self._template = BoundedEnvironment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(f"the chat template is broken at line {error.lineno}: {error.message}") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, str]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """continue_final_message: the text ends with the last message's content, open for more.

        `variables` are extra names for the template; they cannot replace what the server sets.
        Raises ChatTemplateError.
        """
        values = {
            **self._special_tokens,
            **{name: value for name, value in (variables or {}).items() if name not in RESERVED_NAMES},
            "messages": messages,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = render_bounded(self._template, values)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template refused the messages: {error.message}") from error
        except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, LookupError, RecursionError) as error:
            raise ChatTemplateError(f"the chat template failed on these messages: {error}") from error
        return _cut_after_final_message(text, messages) if continue_final_message else text


def choose_template(templates: Mapping[str, str], name: str | None = None) -> str | None:
    """One of several named templates: the named one, else the default one, else the only one."""
    if name is not None:
        return templates.get(name)
    if "default" in templates or len(templates) != 1:
        return templates.get("default")
    return next(iter(templates.values()))


def _cut_after_final_message(text: str, messages: Sequence[Message]) -> str:
    """As transformers: the text up to the end of the last message's content."""
    content = messages[-1].get("content")
    if isinstance(content, list):
        content = content[-1].get("text") if content else None
    if not isinstance(content, str) or not content:
        raise ChatTemplateError("continue_final_message needs text in the last message")
    for wanted in (content, content.strip()):
        if (place := text.rfind(wanted)) >= 0 and wanted:
            return text[: place + len(wanted)]
    raise ChatTemplateError("the chat template does not show the last message, so it cannot be continued")
