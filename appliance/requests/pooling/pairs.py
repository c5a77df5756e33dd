"""Scores of pairs of texts: by a model that reads both, or by the likeness of their vectors."""

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.plan.types import PoolingPlan, VectorActivation
from appliance.requests.errors import invalid
from appliance.requests.pooling.fields import PooledFields
from appliance.requests.pooling.run import (
    PoolingWork,
    here_or_in_thread,
    most_tokens,
    noted,
    pooling_of,
    prompt_text,
    run,
    tokenized,
)
from appliance.requests.pooling.vectors import Floats, activated, calibrated, refuse_task, similarity
from appliance.text.inputs import Input, InputEncoder, TooLongError
from appliance.text.template import ChatTemplate

Pair = tuple[str, str]
_ROLES = ("query", "document")
_YES = -1  # the last of the labels' tokens


@dataclass(frozen=True, slots=True)
class Scored:
    """The score of each pair."""

    request_id: str
    scores: list[float]
    num_tokens: int


async def score_pairs(
    work: PoolingWork,
    pairs: Sequence[Pair],
    fields: PooledFields,
    most_of_document: int | None = None,
) -> Scored:
    """Scores each pair of a query and a document. most_of_document: the tokens to which a document is cut.

    Raises ApiError 400 for a model that cannot score, and for pairs that are too long and may not be cut.
    """
    pooling = pooling_of(work.plan)
    if pooling.task == "embed":
        return await _by_likeness(work, pairs, fields)
    if pooling.kind == "all" or (not pooling.label_token_ids and pooling.width != 1):
        raise refuse_task(pooling, "score pairs of texts", "/classify and /pooling")
    if most_of_document is not None:
        pairs = _cut_documents(work, pairs, most_of_document)
    inputs = await _read_together(work, pooling, pairs, fields)
    pooled = await run(work, inputs, _raw(fields) if pooling.label_token_ids else fields)
    scores = [_score(pooling, vectors, fields) for vectors in pooled.vectors]
    return Scored(pooled.request_id, scores, pooled.num_tokens)


async def _by_likeness(work: PoolingWork, pairs: Sequence[Pair], fields: PooledFields) -> Scored:
    """Embeds each different text once, queries and documents each after their own prompt."""
    prompts = pooling_of(work.plan).prompts
    before = {"query": prompts.get("query", ""), "document": prompts.get("document", prompts.get("passage", ""))}
    asked = [(before["query"] + query, before["document"] + document) for query, document in pairs]
    texts = list(dict.fromkeys(text for pair in asked for text in pair))
    most, side = most_tokens(work, fields)
    pooled = await run(work, await tokenized(work, texts, most, side, "documents"), fields)
    of = dict(zip(texts, pooled.vectors, strict=True))
    return Scored(
        pooled.request_id, [similarity(of[query], of[document]) for query, document in asked], pooled.num_tokens
    )


async def _read_together(
    work: PoolingWork, pooling: PoolingPlan, pairs: Sequence[Pair], fields: PooledFields
) -> list[Input]:
    most, side = most_tokens(work, fields)
    size = sum(len(query) + len(document) for query, document in pairs)
    encoder, template = InputEncoder(work.tokenizer), pair_template(work)

    def encode_pair(at: int, pair: Pair) -> Input:
        try:
            if template is not None:
                return _rendered(work, template, pair, most)
            return encoder.pair(*pair, most, may_cut=side is not None)
        except TooLongError as error:
            message = f"documents[{at}] {error} with the query; truncate_prompt_tokens cuts longer ones"
            raise invalid("documents", message, "context_length_exceeded") from error

    if pooling.is_causal and template is None:
        raise invalid(
            "model",
            "this model reads a query and a document in the text of a template, and has none: its scores would mean"
            " nothing; set model.chat_template",
            "no_chat_template",
        )
    found = await here_or_in_thread(lambda: [encode_pair(at, pair) for at, pair in enumerate(pairs)], size)
    return noted(found, work)


def pair_template(work: PoolingWork) -> ChatTemplate | None:
    """Returns the template of a pair: one that has both a query and a document. Others are for conversations."""
    source = work.plan.model.chat_template or ""
    if not all(f'"{role}"' in source or f"'{role}'" in source for role in _ROLES):
        return None
    return ChatTemplate(source, work.tokenizer.identity.special_tokens)


def _rendered(work: PoolingWork, template: ChatTemplate, pair: Pair, most: int) -> Input:
    messages = [{"role": role, "content": text} for role, text in zip(_ROLES, pair, strict=True)]
    if instruction := prompt_text(pooling_of(work.plan), None, "prompt_name"):
        messages.insert(0, {"role": "system", "content": instruction})
    text = template.render(messages, add_generation_prompt=True)
    token_ids = work.tokenizer.encode(text, add_special_tokens=False)
    if len(token_ids) > most:
        raise TooLongError(f"has {len(token_ids)} tokens, more than {most}")
    return Input(token_ids)


def _cut_documents(work: PoolingWork, pairs: Sequence[Pair], most: int) -> list[Pair]:
    """Cuts each document to its first tokens."""
    encoder = InputEncoder(work.tokenizer)
    return [(query, encoder.text_of_first(document, most)) for query, document in pairs]


def _raw(fields: PooledFields) -> PooledFields:
    return PooledFields(priority=fields.priority, request_id=fields.request_id, use_activation=False)


def _score(pooling: PoolingPlan, vectors: Floats, fields: PooledFields) -> float:
    if not pooling.label_token_ids:
        return float(vectors[0, 0])
    if vectors.shape[-1] == 1:  # calibrated already
        alone = pooling.activation if fields.wants_activation else "none"
        return float(activated(vectors, alone)[0, _YES])
    if vectors.shape[-1] > 2 and fields.wants_activation and pooling.activation != "none":
        return float(activated(vectors, "softmax")[0, _YES])
    difference = calibrated(vectors[:, _YES:] - vectors[:, :1], pooling)
    kind: VectorActivation = "none" if not fields.wants_activation or pooling.activation == "none" else "sigmoid"
    return float(activated(difference, kind)[0, 0])
