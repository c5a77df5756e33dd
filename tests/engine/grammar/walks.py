"""Random walks through masks, as a model with random weights would take them."""

import random
from functools import cache
from typing import Any

import msgspec
import numpy as np

from appliance.engine.grammar.guidance import GuidanceBackend
from appliance.engine.grammar.interface import Grammar
from appliance.engine.grammar.schema import checked_schema
from appliance.engine.messages import Constraint, Vocabulary

from .vocabulary import EOS, FIRST_BYTE, VOCAB, byte_tokenizer, spelled, token_bytes

CLOSERS = frozenset((EOS, *(FIRST_BYTE + byte for byte in b'"}],:.0a')))  # so that walks come to an end


def vocabulary() -> Vocabulary:
    return Vocabulary(tokenizer=byte_tokenizer().to_str(), eos_token_ids=(EOS,))


@cache
def backend() -> GuidanceBackend:
    return GuidanceBackend(vocabulary(), VOCAB)


def constraint(kind: Any, source: str, **options: Any) -> Constraint:
    return Constraint(kind=kind, source=source, field="f", **options)


def json_grammar(schema: Any, whitespace: str | None = "") -> Grammar:
    source = msgspec.json.encode(checked_schema(schema)).decode()
    return backend().compile(constraint("json_schema", source, whitespace=whitespace))


def allowed(row: np.ndarray) -> list[int]:
    found: list[int] = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
    return found


def walk(grammar: Grammar, seed: int, most: int = 400, calm: float = 0.5, begin: str = "") -> bytes | None:
    """Returns a walk's text, from `begin` on; None if it reached no end. `calm` of the steps prefer closing tokens."""
    choose, matcher = random.Random(seed), grammar.start()
    row = np.zeros(-(-VOCAB // 32), np.uint32)
    said = bytearray(begin.encode())
    matcher.consume(spelled(begin))
    for _ in range(most):
        if matcher.is_complete:
            return bytes(said)
        matcher.fill(row)
        tokens = allowed(row)
        closing = [token for token in tokens if token in CLOSERS] if choose.random() < calm else []
        token = choose.choice(closing or tokens)
        if token == EOS:
            return bytes(said)
        said += token_bytes()[token]
        matcher.consume((token,))
    return None
