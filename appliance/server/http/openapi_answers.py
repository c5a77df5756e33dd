"""The answers of the routes as JSON Schema: fields that clients may rely on; more may follow."""

from typing import Any

ERROR, ERROR_ANTHROPIC = "Error", "AnthropicError"

_TEXT, _INTEGER = {"type": "string"}, {"type": "integer"}
_MAYBE_TEXT = {"type": ["string", "null"]}


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {**required, **optional}, "required": list(required)}


def _list(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": of}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


SCHEMAS: dict[str, Any] = {
    ERROR: _object(
        {"error": _object({"message": _TEXT, "type": _TEXT, "param": _MAYBE_TEXT, "code": _MAYBE_TEXT})},
    ),
    ERROR_ANTHROPIC: _object({"type": {"const": "error"}, "error": _object({"type": _TEXT, "message": _TEXT})}),
    "Usage": _object({"prompt_tokens": _INTEGER, "completion_tokens": _INTEGER, "total_tokens": _INTEGER}),
    "Choice": _object({"index": _INTEGER, "finish_reason": _MAYBE_TEXT}),
    "Completion": _object(
        {
            "id": _TEXT,
            "object": {"enum": ["text_completion", "chat.completion"]},
            "created": _INTEGER,
            "model": _TEXT,
            "choices": _list(_ref("Choice")),
            "usage": _ref("Usage"),
        }
    ),
    "Response": _object(
        {
            "id": _TEXT,
            "object": {"const": "response"},
            "created_at": _INTEGER,
            "model": _TEXT,
            "status": {"enum": ["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]},
            "output": _list({"type": "object"}),
        }
    ),
    "Items": _object({"object": {"const": "list"}, "data": _list({"type": "object"}), "has_more": {"type": "boolean"}}),
    "Message": _object(
        {
            "id": _TEXT,
            "type": {"const": "message"},
            "role": {"const": "assistant"},
            "model": _TEXT,
            "content": _list({"type": "object"}),
            "stop_reason": _MAYBE_TEXT,
            "usage": _object({"input_tokens": _INTEGER, "output_tokens": _INTEGER}),
        }
    ),
    "MessageTokens": _object({"input_tokens": _INTEGER}),
    "Rendered": _object({"token_ids": _list(_INTEGER), "sampling_params": {"type": "object"}}),
    "Generated": _object(
        {"request_id": _TEXT, "choices": _list(_object({"index": _INTEGER, "token_ids": _list(_INTEGER)}))}
    ),
    "Scores": _object(
        {"object": {"const": "list"}, "data": _list(_object({"index": _INTEGER, "score": {"type": "number"}}))}
    ),
    "Pooled": _object(
        {
            "id": _TEXT,
            "object": {"const": "list"},
            "created": _INTEGER,
            "model": _TEXT,
            "data": _list(_object({"index": _INTEGER})),
            "usage": _object({"prompt_tokens": _INTEGER, "total_tokens": _INTEGER}),
        }
    ),
    "Ranked": _object(
        {
            "id": _TEXT,
            "model": _TEXT,
            "results": _list(_object({"index": _INTEGER, "relevance_score": {"type": "number"}})),
            "usage": _object({"total_tokens": _INTEGER}),
        }
    ),
    "Embedded": _object({"id": _TEXT, "embeddings": {"type": ["object", "array"]}, "texts": _list(_TEXT)}),
    "Texts": _object({"text": _list(_TEXT)}),
    "File": _object({"id": _TEXT, "object": {"const": "file"}}),
    "Batch": _object({"id": _TEXT, "object": {"const": "batch"}, "status": _TEXT, "endpoint": _TEXT}),
    "Model": _object({"id": _TEXT, "object": {"const": "model"}, "created": _INTEGER, "owned_by": _TEXT}),
    "Models": _object({"object": {"const": "list"}, "data": _list(_ref("Model"))}),
    "Tokens": _object({"tokens": _list(_INTEGER), "count": _INTEGER, "max_model_len": _INTEGER}),
    "Prompt": _object({"prompt": _TEXT}),
    "Version": _object({"version": _TEXT}),
    "Load": _object({"server_load": _INTEGER}),
    "Ready": _object(
        {"ready": {"type": "boolean"}, "state": _TEXT, "reasons": _list(_TEXT)},
        deep=_object({"result": {"enum": ["ok", "busy", "stuck"]}, "seconds": {"type": "number"}, "reason": _TEXT}),
    ),
    "Live": _object({"live": {"const": True}}),
}


UPLOAD = _object({"file": {"type": "string", "format": "binary"}, "purpose": {"const": "batch"}})


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": _ref(name)}}


def _text(kind: str) -> dict[str, Any]:
    return {kind: {"schema": _TEXT}}


ANSWERS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": _json("Completion"),
    "/v1/completions": _json("Completion"),
    "/v1/chat/completions/render": _json("Rendered"),
    "/v1/completions/render": {"application/json": {"schema": _list(_ref("Rendered"))}},
    "/generative_scoring": _json("Scores"),
    "/v1/embeddings": _json("Pooled"),
    "/pooling": _json("Pooled"),
    "/classify": _json("Pooled"),
    "/score": _json("Pooled"),
    "/v1/score": _json("Pooled"),
    "/rerank": _json("Ranked"),
    "/v1/rerank": _json("Ranked"),
    "/v2/rerank": _json("Ranked"),
    "/v1/embed": _json("Embedded"),
    "/v2/embed": _json("Embedded"),
    "/inference/v1/generate": _json("Generated"),
    "/invocations": _json("Completion"),
    "/generate": {**_json("Texts"), "application/octet-stream": {"schema": _TEXT}},
    "/v1/responses": _json("Response"),
    "/v1/responses/{response_id}/cancel": _json("Response"),
    "/v1/responses/{response_id}/input_items": _json("Items"),
    "/v1/messages": _json("Message"),
    "/v1/messages/count_tokens": _json("MessageTokens"),
    "/v1/responses/input_tokens": _json("MessageTokens"),
    "/v1/files/{file_id}": _json("File"),
    "/v1/files/{file_id}/content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    "/v1/batches/{batch_id}": _json("Batch"),
    "/v1/batches/{batch_id}/cancel": _json("Batch"),
    "/v1/models": _json("Models"),
    "/v1/models/{model:path}": _json("Model"),
    "/lora-adapters": {
        "application/json": {
            "schema": {
                "oneOf": [
                    _list(_object({"id": _INTEGER, "name": _TEXT, "path": _TEXT})),
                    _object({"success": {"type": "boolean"}}),
                ]
            }
        }
    },
    "/v1/load_lora_adapter": _text("text/plain"),
    "/v1/unload_lora_adapter": _text("text/plain"),
    "/collective_rpc": {"application/json": {"schema": _object({"results": {"type": "array"}})}},
    "/tokenize": _json("Tokens"),
    "/detokenize": _json("Prompt"),
    "/version": _json("Version"),
    "/load": _json("Load"),
    "/start_profile": {"application/json": {"schema": _object({"profiling": {"type": "boolean"}})}},
    "/stop_profile": {
        "application/json": {"schema": _object({"file": _TEXT, "num_steps": _INTEGER, "num_steps_left_out": _INTEGER})}
    },
    "/readyz": _json("Ready"),
    "/livez": _json("Live"),
    "/health": {},
    "/ping": {},
    "/metrics": _text("text/plain"),
    "/": _text("text/html"),
    "/docs": _text("text/html"),
    "/docs/offline": _text("text/html"),
    "/page.css": _text("text/css"),
    "/page.js": _text("text/javascript"),
    "/docs.js": _text("text/javascript"),
}
EVENT = _object({"data": _TEXT}, event=_TEXT)  # one of a stream
SILENT = frozenset({"/debug/profile/start"})  # answer 204
STREAMED = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/inference/v1/generate",
        "/invocations",
    }
)
