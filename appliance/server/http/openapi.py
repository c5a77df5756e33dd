"""The OpenAPI document of a server: from its route table, and from the structs that its bodies are decoded into."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec
import orjson

from appliance import __version__
from appliance.requests.fields import ChatFields, CompletionFields
from appliance.requests.pooling.fields import (
    ClassifyFields,
    EmbeddingFields,
    EmbedFields,
    PoolingFields,
    RerankFields,
    ScoreFields,
)
from appliance.server.adapters.routes import AdapterScale, LoadAdapterFields, UnloadAdapterFields
from appliance.server.admin.collective import CallFields
from appliance.server.admin.weights import UpdateFields
from appliance.server.anthropic.fields import MessagesFields, PromptFields
from appliance.server.batches.routes import BatchFields
from appliance.server.http.openapi_answers import (
    ANSWERS,
    ERROR,
    ERROR_ANTHROPIC,
    EVENT,
    SCHEMAS,
    SILENT,
    STREAMED,
    UPLOAD,
)
from appliance.server.http.routes import Route
from appliance.server.openai.scoring import ScoringFields
from appliance.server.responses.fields import ResponsesFields
from appliance.server.tokens.demo import DemoFields
from appliance.server.tokens.fields import GenerateFields
from appliance.server.tokens.routes import DetokenizeFields, TokenizeFields

BODIES: dict[str, Any] = {
    "/v1/chat/completions": ChatFields,
    "/v1/completions": CompletionFields,
    "/v1/responses": ResponsesFields,
    "/v1/chat/completions/render": ChatFields,
    "/v1/completions/render": CompletionFields,
    "/generative_scoring": ScoringFields,
    "/v1/embeddings": EmbeddingFields,
    "/pooling": PoolingFields,
    "/classify": ClassifyFields,
    "/score": ScoreFields,
    "/v1/score": ScoreFields,
    "/rerank": RerankFields,
    "/v1/rerank": RerankFields,
    "/v2/rerank": RerankFields,
    "/v1/embed": EmbedFields,
    "/v2/embed": EmbedFields,
    "/inference/v1/generate": GenerateFields,
    "/generate": DemoFields,
    "/v1/batches": BatchFields,
    "/v1/responses/input_tokens": ResponsesFields,
    "/v1/messages": MessagesFields,
    "/v1/messages/count_tokens": PromptFields,
    "/lora-adapters": list[AdapterScale],
    "/v1/load_lora_adapter": LoadAdapterFields,
    "/v1/unload_lora_adapter": UnloadAdapterFields,
    "/tokenize": TokenizeFields,
    "/detokenize": DetokenizeFields,
    "/collective_rpc": CallFields,
    "/update_weights_from_disk": UpdateFields,
}
# Ends of POST paths that take none.
_WITHOUT_BODY = ("/ping", "/cancel", "/start", "/stop", "_profile", "/sleep", "/wake_up", "/pause", "/resume")
_REFERENCE = "#/components/schemas/{name}"
_REFUSALS = {
    400: "The request is wrong; `param` names the field.",
    401: "No valid API key.",
    403: "The key may not do this, or the Host header names another server.",
    404: "There is no such thing here.",
    405: "The path has other methods.",
    426: "There are no WebSockets here.",
    429: "Too much at once, or in this minute; see Retry-After.",
    431: "The headers are too large.",
    503: "The engine is away, or the server ends; see Retry-After.",
}
_REFUSALS_OF_BODIES = {
    408: "The body did not end in time.",
    413: "The body is too large.",
    415: "The body is not application/json.",
}


def document(routes: Iterable[Route], *, has_keys: bool) -> bytes:
    """The document as JSON, OpenAPI 3.1."""
    bodies, schemas = msgspec.json.schema_components(list(BODIES.values()), ref_template=_REFERENCE)
    references = dict(zip(BODIES, bodies, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        for method in route.methods:
            operation = _operation(route, method, references.get(route.path))
            paths.setdefault(re.sub(r":path}", "}", route.path), {})[method.lower()] = operation
    return orjson.dumps(
        {
            "openapi": "3.1.0",
            "info": {"title": "appliance", "version": __version__, "description": "The API of this deployment."},
            "paths": paths,
            "components": {
                "schemas": {**SCHEMAS, **schemas},
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            },
            "security": [{"key": []}] if has_keys else [],
        }
    )


def _operation(route: Route, method: str, body: dict[str, Any] | None) -> dict[str, Any]:
    has_body = method == "POST" and not route.path.endswith(_WITHOUT_BODY)
    operation: dict[str, Any] = {
        "operationId": f"{route.handler.__name__}_{method.lower()}",
        "summary": ((route.handler.__doc__ or route.handler.__name__.replace("_", " ")).strip().split("\n")[0]),
        "responses": {**_answers(route), **_refusals(route, has_body=has_body)},
    }
    names = re.findall(r"{(\w+)(?::path)?}", route.path)
    if names:
        text = {"type": "string", "minLength": 1}
        operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": text} for name in names]
    if has_body:
        schema = body or {"type": "object"}
        kind = "application/json"
        if route.path == "/v1/files":
            kind, schema = "multipart/form-data", UPLOAD
        operation["requestBody"] = {"required": True, "content": {kind: {"schema": schema}}}
    if route.auth == "public":
        operation["security"] = []
    return operation


def _answers(route: Route) -> dict[str, Any]:
    default: dict[str, Any] = {} if route.path in SILENT else {"application/json": {"schema": {}}}
    content: dict[str, Any] = ANSWERS.get(route.path, default)
    if route.path in STREAMED:
        content = {**content, "text/event-stream": {"schema": EVENT}}
    status = "204" if route.path in SILENT else "200"
    return {status: {"description": "Done.", **({"content": content} if content else {})}}


def _refusals(route: Route, *, has_body: bool) -> dict[str, Any]:
    found = {**_REFUSALS, **(_REFUSALS_OF_BODIES if has_body else {})}
    schema = {"$ref": _REFERENCE.format(name=ERROR_ANTHROPIC if route.errors == "anthropic" else ERROR)}
    content = {"application/json": {"schema": schema}}
    refusals: dict[str, Any] = {
        str(status): {"description": what, "content": content} for status, what in found.items()
    }
    if route.auth == "public":  # health answers 503 in its own words
        refusals["503"] = {"description": "Not ready."}
    return refusals
