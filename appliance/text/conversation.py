"""What writes the conversations of a model whose prompts come from no chat template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChatHistory:
    """A conversation in OpenAI's form. is_continued: the answer goes on with the last message, the assistant's."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    is_continued: bool = False
    reasoning_effort: str | None = None


class ConversationEncoder(Protocol):
    """Encodes whole conversations. What a message spells is never a control token. Safe to use from several threads."""

    name: str  # what errors call it

    def encode(self, conversation: ChatHistory) -> list[int]:
        """Returns the token ids of the prompt, with all special tokens.

        Raises ChatTemplateError for a conversation that the model's format does not have.
        """
