"""The tokenizer of an engine, with the methods of transformers' that callers of vLLM use."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, overload

from appliance.offline.session import Session
from appliance.offline.wishes import ChatOptions, Conversation


class Encoded(NamedTuple):
    """input_ids: of one text, or of each. attention_mask: ones."""

    input_ids: list[Any]
    attention_mask: list[Any]


class OfflineTokenizer:
    """Encodes, decodes and renders conversations as the engine does."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tokenizer = session.tokenizer

    def __call__(self, text: str | Sequence[str], *, add_special_tokens: bool = True) -> Encoded:
        if isinstance(text, str):
            ids: list[Any] = self.encode(text, add_special_tokens=add_special_tokens)
            return Encoded(ids, [1] * len(ids))
        several = [self.encode(each, add_special_tokens=add_special_tokens) for each in text]
        return Encoded(several, [[1] * len(each) for each in several])

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def vocab_size(self) -> int:
        """The number of tokens, with those that were added."""
        return self._tokenizer.vocab_size

    @property
    def chat_template(self) -> str | None:
        return self._session.plan.model.chat_template

    @property
    def all_special_ids(self) -> list[int]:
        return sorted(self._tokenizer.special_ids)

    @property
    def all_special_tokens(self) -> list[str]:
        return [self._tokenizer.added_tokens[each] for each in self.all_special_ids]

    @property
    def special_tokens_map(self) -> dict[str, str]:
        return dict(self._tokenizer.identity.special_tokens)

    @property
    def bos_token(self) -> str | None:
        return self.special_tokens_map.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self.special_tokens_map.get("eos_token")

    @property
    def pad_token(self) -> str | None:
        return self.special_tokens_map.get("pad_token")

    @property
    def bos_token_id(self) -> int | None:
        return self._id_of(self.bos_token)

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a sequence; the first of several."""
        ends = self._session.text.eos_token_ids
        return self._id_of(self.eos_token) if not ends else ends[0]

    @property
    def pad_token_id(self) -> int | None:
        return self._id_of(self.pad_token)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: int | Sequence[int], *, skip_special_tokens: bool = False) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def batch_decode(self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool = False) -> list[str]:
        return [self.decode(each, skip_special_tokens=skip_special_tokens) for each in sequences]

    def tokenize(self, text: str, *, add_special_tokens: bool = False) -> list[str]:
        return self.convert_ids_to_tokens(self.encode(text, add_special_tokens=add_special_tokens))

    def get_vocab(self) -> dict[str, int]:
        backend = self._tokenizer.backend
        spelled = ((backend.id_to_token(each), each) for each in range(self.vocab_size))
        return {token: token_id for token, token_id in spelled if token is not None}

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> int | list[int | None] | None:
        """Returns None for a token that the vocabulary does not have."""
        if isinstance(tokens, str):
            return self._tokenizer.token_id(tokens)
        return [self._tokenizer.token_id(each) for each in tokens]

    @overload
    def convert_ids_to_tokens(self, ids: int) -> str: ...

    @overload
    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]: ...

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> str | list[str]:
        """Returns the vocabulary's spelling; an empty text for an id that it does not have."""
        spelled = [self._tokenizer.backend.id_to_token(each) or "" for each in ([ids] if isinstance(ids, int) else ids)]
        return spelled[0] if isinstance(ids, int) else spelled

    def apply_chat_template(
        self,
        conversation: Any,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, str]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **variables: Any,
    ) -> str | list[int]:
        """Renders a conversation, as text or as tokens. `variables` are the template's. Raises InvalidRequestError."""
        options = ChatOptions(
            tools=tools,
            documents=documents,
            chat_template=chat_template,
            chat_template_kwargs=variables,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        wished = Conversation(conversation, options)
        prompt = self._session.run(lambda: self._session.wishes.chat(wished))
        return prompt.token_ids if tokenize else prompt.text or ""

    def _id_of(self, token: str | None) -> int | None:
        return None if token is None else self._tokenizer.token_id(token)
