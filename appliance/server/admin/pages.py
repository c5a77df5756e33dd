"""Pages for a browser: a page to talk to the model, the reference of the API, and the plan as JSON.

Everything is one origin's: no outside resource, no inline script, and a policy that forbids both.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.plan.types import EnginePlan
from appliance.server.state import ServerState

_FOLDER = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}
_HIDDEN = ("serving.", "model.path", "model.tokenizer_path", "bench.", "batch.")  # of decisions: places and addresses


async def page(state: ServerState, request: Request) -> Response:
    """The page for people."""
    return _file("page.html")


async def page_style(state: ServerState, request: Request) -> Response:
    return _file("page.css")


async def page_script(state: ServerState, request: Request) -> Response:
    return _file("page.js")


async def docs(state: ServerState, request: Request) -> Response:
    return _file("docs.html")


async def docs_script(state: ServerState, request: Request) -> Response:
    return _file("docs.js")


async def openapi(state: ServerState, request: Request) -> Response:
    """The OpenAPI document."""
    return Response(state.document, media_type="application/json")


async def saved_docs(state: ServerState, request: Request) -> Response:
    """The reference as one file that needs no server, to be saved."""
    headers = {**HEADERS, "content-disposition": 'attachment; filename="api.html"'}
    return Response(offline_docs(state.document), media_type=_TYPES[".html"], headers=headers)


async def plan(state: ServerState, request: Request) -> Response:
    """Shows what runs and why, without paths, addresses and keys."""
    return Response(orjson.dumps(plan_view(state.plan)), media_type="application/json")


def plan_view(plan: EnginePlan) -> dict[str, Any]:
    cache, scheduler = plan.cache, plan.scheduler
    summary = {
        "Model": f"{', '.join(plan.model.served_names)} ({plan.model.architecture}, {plan.model.format})",
        "Context": f"{plan.model.max_model_len:,} tokens",
        "Device": f"{plan.hardware}, profile {plan.profile}",
        "Kernels": f"{plan.kernels.kernel_set}, {plan.kernels.num_threads} threads",
        "Weights": ", ".join(sorted({weights.layout for weights in plan.precision.weights})) or "-",
        "KV cache": f"{cache.num_blocks:,} blocks of {cache.block_size} tokens, {plan.precision.kv_dtype}",
        "Step": f"{scheduler.max_num_seqs} sequences, {scheduler.max_num_batched_tokens:,} tokens, {scheduler.policy}",
        "Engine": plan.engine_sha256[:12] or "-",
    }
    return {
        "name": plan.name,
        "summary": summary,
        "memory": msgspec.to_builtins(plan.memory),
        "decisions": [msgspec.to_builtins(each) for each in plan.decisions if not each.path.startswith(_HIDDEN)],
        "warnings": list(plan.warnings),
    }


def _file(name: str) -> Response:
    return Response(_content(name), media_type=_TYPES[Path(name).suffix], headers=HEADERS)


@cache
def _content(name: str) -> bytes:
    return (_FOLDER / name).read_bytes()


def offline_docs(schema: bytes) -> bytes:
    """The reference as one file that holds the schema, its style and its script: a saved copy is complete."""
    html = _content("docs.html").decode()
    style, script = _content("page.css").decode(), _content("docs.js").decode()
    data = schema.decode().replace("<", "\\u003c")
    html = html.replace('<link rel="stylesheet" href="page.css">', f"<style>{style}</style>")
    inline = f'<script id="schema" type="application/json">{data}</script>\n<script>{script}</script>'
    return html.replace('<script src="docs.js" defer></script>', "").replace("</body>", f"{inline}\n</body>").encode()
