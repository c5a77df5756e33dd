"""The routes of models that pool. What answers them is loaded by the first request: it needs numpy, which a server of
a model that generates does without."""

import importlib
from typing import cast

from starlette.requests import Request
from starlette.responses import Response

from appliance.server.state import ServerState


async def create_embeddings(state: ServerState, request: Request) -> Response:
    """The vector of each input, as numbers or as base64 of f32, little-endian."""
    return await _answer("embeddings.create_embeddings", state, request)


async def pool(state: ServerState, request: Request) -> Response:
    """What the model pools of each input: a vector, or one of each token."""
    return await _answer("embeddings.pool", state, request)


async def embed(state: ServerState, request: Request) -> Response:
    """The vectors of texts, in each type that is asked for."""
    return await _answer("cohere.embed", state, request)


async def score(state: ServerState, request: Request) -> Response:
    """The score of each pair of texts."""
    return await _answer("scores.score", state, request)


async def rerank(state: ServerState, request: Request) -> Response:
    """Documents by their score with a query, the best first; `index` is the place of each in the request."""
    return await _answer("scores.rerank", state, request)


async def classify(state: ServerState, request: Request) -> Response:
    """The classes of each input, and the label of the most likely one."""
    return await _answer("scores.classify", state, request)


async def _answer(name: str, state: ServerState, request: Request) -> Response:
    module, _, function = name.partition(".")
    handler = getattr(importlib.import_module(f"appliance.server.pooling.{module}"), function)
    return cast(Response, await handler(state, request))
