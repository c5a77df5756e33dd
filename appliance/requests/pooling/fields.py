"""The bodies of the routes of models that pool. A field that is not listed is refused by name."""

from typing import Any, Literal

import msgspec

from appliance.requests.fields import ChatMessage

EncodingFormat = Literal["float", "base64"]
EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
Texts = str | list[str]


class PooledFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields that all these routes have.

    truncate_prompt_tokens: longer inputs are cut to so many tokens at their end; -1: to what the model takes.
    use_activation, normalize: false leaves the model's own numbers.
    """

    model: str | None = None
    truncate_prompt_tokens: int | None = None
    priority: int | None = None
    request_id: str | None = None
    user: str | None = None
    use_activation: bool | None = None
    activation: bool | None = None
    normalize: bool | None = None

    @property
    def wants_activation(self) -> bool:
        return False not in (self.use_activation, self.activation, self.normalize)


class InputFields(PooledFields, kw_only=True, forbid_unknown_fields=True):
    """input: a text, texts, token ids, or lists of token ids. messages: a conversation, which is one input.

    add_special_tokens: None for true with texts, and false with messages, whose template writes its own. Token ids are
    taken as they are.
    """

    input: str | list[str | int | list[int]] | None = None
    messages: list[ChatMessage] | None = None
    encoding_format: EncodingFormat | None = None
    dimensions: int | None = None
    prompt_name: str | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = False
    chat_template_kwargs: dict[str, Any] | None = None


class EmbeddingFields(InputFields, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/embeddings."""


class PoolingFields(InputFields, kw_only=True, forbid_unknown_fields=True):
    """POST /pooling."""

    task: str | None = None


class ClassifyFields(PooledFields, kw_only=True, forbid_unknown_fields=True):
    """POST /classify."""

    input: str | list[str | int | list[int]]
    add_special_tokens: bool | None = None


class ScoreFields(PooledFields, kw_only=True, forbid_unknown_fields=True):
    """POST /score: one text against one or several, or as many pairs as each side has texts."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None


class RankedDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    text: str


class RerankFields(PooledFields, kw_only=True, forbid_unknown_fields=True):
    """POST /rerank in Jina's and Cohere's words."""

    query: str
    documents: list[str | RankedDocument]
    top_n: int | None = None
    return_documents: bool = True
    max_tokens_per_doc: int | None = None


class EmbedFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/embed and /v2/embed, Cohere's."""

    model: str | None = None
    texts: list[str] | None = None
    images: list[str] | None = None
    inputs: list[Any] | None = None
    input_type: str | None = None
    embedding_types: list[EmbeddingType] | None = None
    output_dimension: int | None = None
    max_tokens: int | None = None
    truncate: Literal["END", "START", "NONE"] | None = None  # None: END; langchain-cohere sends null
    priority: int | None = None
