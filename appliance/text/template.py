"""Chat templates: they render a conversation as the prompt text that a model was trained on."""

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from appliance.text.errors import ChatTemplateError
from appliance.text.final_message import open_final_message
from appliance.text.template_sandbox import BoundedEnvironment, fixed_time, render_bounded

Message = Mapping[str, Any]
RESERVED_NAMES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class ChatTemplate:
    """A compiled template. Safe to use from several threads."""

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        """Compiles the template. special_tokens: text by name, such as "bos_token". Raises ChatTemplateError for a
        syntax error."""
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
        """Renders a conversation.

        continue_final_message: the text ends with the last message's content as the template writes it (some trim it,
        some write it as JSON), so that the answer continues it.

        `variables` are extra names for the template; they cannot replace what the server sets.
        Raises ChatTemplateError.
        """
        values = {
            **self._special_tokens,
            **{name: value for name, value in (variables or {}).items() if name not in RESERVED_NAMES},
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
            **fixed_time(),
        }

        def written(said: Sequence[Message]) -> str:
            return self._written({**values, "messages": said})

        return open_final_message(written, messages) if continue_final_message else written(messages)

    def _written(self, values: Mapping[str, Any]) -> str:
        try:
            return render_bounded(self._template, values)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template refused the messages: {error.message}") from error
        except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, LookupError, RecursionError) as error:
            raise ChatTemplateError(f"the chat template failed on these messages: {error}") from error
