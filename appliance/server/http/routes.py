"""Every route of the server, in one table."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response

from appliance.plan.serving_types import RoutesPlan
from appliance.requests.errors import ErrorShape
from appliance.server.adapters import routes as adapter_routes
from appliance.server.admin import collective, debug, health, pages, pause, sleep, traces, weights
from appliance.server.anthropic import routes as anthropic_routes
from appliance.server.batches import files
from appliance.server.batches import routes as batch_routes
from appliance.server.openai import chat, completions, models, sagemaker, scoring
from appliance.server.pooling import routes as pooling_routes
from appliance.server.responses import routes as response_routes
from appliance.server.state import ServerState
from appliance.server.tokens import demo, generate, info, render
from appliance.server.tokens import routes as token_routes

AuthClass = Literal["public", "key"]  # key: an API key is needed where the plan has any
ApplyClass = Literal["live", "drain", "restart"]  # how a change of the route's settings takes effect
RouteWork = Literal["generate", "pool"]
Handler = Callable[[ServerState, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    path: str
    methods: tuple[str, ...]
    auth: AuthClass
    apply: ApplyClass
    handler: Handler
    is_served: Callable[[RoutesPlan], bool] = lambda plan: True
    errors: ErrorShape = "openai"
    does: RouteWork | None = None  # what the model must do for it; None: whatever it does


def _api(name: str) -> Callable[[RoutesPlan], bool]:
    return lambda plan: name in plan.apis


_responses, _batches = _api("responses"), _api("batches")
_openai, _anthropic, _debug = _api("openai"), _api("anthropic"), _api("debug")


def _lists_models(plan: RoutesPlan) -> bool:
    return _openai(plan) or _anthropic(plan)


def _runtime_adapters(plan: RoutesPlan) -> bool:
    return plan.runtime_adapters


def _traces(plan: RoutesPlan) -> bool:
    return plan.profiler_dir is not None


def _sleeps(plan: RoutesPlan) -> bool:
    return plan.sleep


def _updates_weights(plan: RoutesPlan) -> bool:
    return bool(plan.weight_update_paths)


def _pauses(plan: RoutesPlan) -> bool:
    return _sleeps(plan) or _updates_weights(plan)


def _page(plan: RoutesPlan) -> bool:
    return plan.page


def _docs(plan: RoutesPlan) -> bool:
    return plan.docs


def _saved_docs(plan: RoutesPlan) -> bool:
    return plan.offline_docs


ROUTES: tuple[Route, ...] = (
    Route("/v1/chat/completions", ("POST",), "key", "live", chat.create_chat_completion, _openai, does="generate"),
    Route("/v1/completions", ("POST",), "key", "live", completions.create_completion, _openai, does="generate"),
    Route("/v1/chat/completions/render", ("POST",), "key", "live", render.render_chat, _openai, does="generate"),
    Route("/v1/completions/render", ("POST",), "key", "live", render.render_completion, _openai, does="generate"),
    Route("/generative_scoring", ("POST",), "key", "live", scoring.score_items, _openai, does="generate"),
    Route("/v1/embeddings", ("POST",), "key", "live", pooling_routes.create_embeddings, _openai, does="pool"),
    Route("/pooling", ("POST",), "key", "live", pooling_routes.pool, _openai, does="pool"),
    Route("/classify", ("POST",), "key", "live", pooling_routes.classify, _openai, does="pool"),
    Route("/score", ("POST",), "key", "live", pooling_routes.score, _openai, does="pool"),
    Route("/v1/score", ("POST",), "key", "live", pooling_routes.score, _openai, does="pool"),
    Route("/rerank", ("POST",), "key", "live", pooling_routes.rerank, _openai, does="pool"),
    Route("/v1/rerank", ("POST",), "key", "live", pooling_routes.rerank, _openai, does="pool"),
    Route("/v2/rerank", ("POST",), "key", "live", pooling_routes.rerank, _openai, does="pool"),
    Route("/v1/embed", ("POST",), "key", "live", pooling_routes.embed, _openai, does="pool"),
    Route("/v2/embed", ("POST",), "key", "live", pooling_routes.embed, _openai, does="pool"),
    Route("/inference/v1/generate", ("POST",), "key", "live", generate.generate, _api("inference"), does="generate"),
    Route("/invocations", ("POST",), "key", "live", sagemaker.invocations, _api("sagemaker"), does="generate"),
    Route("/generate", ("POST",), "key", "live", demo.demo_generate, _api("demo"), does="generate"),
    Route("/v1/models", ("GET",), "key", "live", models.list_models, _lists_models),
    Route("/v1/models/{model:path}", ("GET",), "key", "live", models.get_model, _lists_models),
    Route("/v1/responses", ("POST",), "key", "live", response_routes.create_response, _responses, does="generate"),
    Route("/v1/responses/input_tokens", ("POST",), "key", "live", response_routes.count_input_tokens, _responses),
    Route("/v1/responses/{response_id}", ("GET",), "key", "live", response_routes.get_response, _responses),
    Route("/v1/responses/{response_id}", ("DELETE",), "key", "live", response_routes.delete_response, _responses),
    Route("/v1/responses/{response_id}/cancel", ("POST",), "key", "live", response_routes.cancel_response, _responses),
    Route(
        "/v1/responses/{response_id}/input_items",
        ("GET",),
        "key",
        "live",
        response_routes.list_input_items,
        _responses,
    ),
    Route("/v1/files", ("POST",), "key", "live", files.create_file, _batches),
    Route("/v1/files", ("GET",), "key", "live", files.list_files, _batches),
    Route("/v1/files/{file_id}", ("GET",), "key", "live", files.get_file, _batches),
    Route("/v1/files/{file_id}", ("DELETE",), "key", "live", files.delete_file, _batches),
    Route("/v1/files/{file_id}/content", ("GET",), "key", "live", files.get_content, _batches),
    Route("/v1/batches", ("POST",), "key", "live", batch_routes.create_batch, _batches),
    Route("/v1/batches", ("GET",), "key", "live", batch_routes.list_batches, _batches),
    Route("/v1/batches/{batch_id}", ("GET",), "key", "live", batch_routes.get_batch, _batches),
    Route("/v1/batches/{batch_id}/cancel", ("POST",), "key", "live", batch_routes.cancel_batch, _batches),
    Route(
        "/v1/messages",
        ("POST",),
        "key",
        "live",
        anthropic_routes.create_message,
        _anthropic,
        "anthropic",
        does="generate",
    ),
    Route(
        "/v1/messages/count_tokens", ("POST",), "key", "live", anthropic_routes.count_tokens, _anthropic, "anthropic"
    ),
    Route("/lora-adapters", ("GET",), "key", "live", adapter_routes.list_adapters, _openai),
    Route("/lora-adapters", ("POST",), "key", "live", adapter_routes.set_scales, _runtime_adapters),
    Route("/v1/load_lora_adapter", ("POST",), "key", "live", adapter_routes.load_adapter, _runtime_adapters),
    Route("/v1/unload_lora_adapter", ("POST",), "key", "live", adapter_routes.unload_adapter, _runtime_adapters),
    Route("/tokenize", ("POST",), "key", "live", token_routes.tokenize),
    Route("/detokenize", ("POST",), "key", "live", token_routes.detokenize),
    Route("/tokenizer_info", ("GET",), "key", "live", info.tokenizer_info, lambda plan: plan.tokenizer_info),
    Route("/version", ("GET",), "key", "live", health.version),
    Route("/load", ("GET",), "key", "live", health.load),
    Route("/metrics", ("GET",), "key", "live", health.metrics, lambda plan: plan.metrics),
    Route("/debug/profile/start", ("POST",), "key", "live", debug.start_profile, _debug),
    Route("/debug/profile/stop", ("POST",), "key", "live", debug.stop_profile, _debug),
    Route("/start_profile", ("POST",), "key", "live", traces.start_profile, _traces),
    Route("/stop_profile", ("POST",), "key", "live", traces.stop_profile, _traces),
    Route("/collective_rpc", ("POST",), "key", "live", collective.call_ranks, _debug),
    Route("/sleep", ("POST",), "key", "live", sleep.sleep, _sleeps),
    Route("/wake_up", ("POST",), "key", "live", sleep.wake_up, _sleeps),
    Route("/is_sleeping", ("GET",), "key", "live", sleep.is_sleeping, _sleeps),
    Route("/pause", ("POST",), "key", "live", pause.pause, _pauses),
    Route("/resume", ("POST",), "key", "live", pause.resume, _pauses),
    Route("/is_paused", ("GET",), "key", "live", pause.is_paused, _pauses),
    Route("/update_weights_from_disk", ("POST",), "key", "live", weights.update_weights_from_disk, _updates_weights),
    Route("/get_weight_version", ("GET",), "key", "live", weights.get_weight_version, _updates_weights),
    Route("/plan", ("GET",), "key", "live", pages.plan, _page),
    Route("/openapi.json", ("GET",), "key", "live", pages.openapi, _docs),
    Route("/docs/offline", ("GET",), "key", "live", pages.saved_docs, _saved_docs),
    Route("/", ("GET",), "public", "live", pages.page, _page),
    Route("/page.js", ("GET",), "public", "live", pages.page_script, _page),
    Route("/page.css", ("GET",), "public", "live", pages.page_style, lambda plan: _page(plan) or _docs(plan)),
    Route("/docs", ("GET",), "public", "live", pages.docs, _docs),
    Route("/docs.js", ("GET",), "public", "live", pages.docs_script, _docs),
    Route("/livez", ("GET",), "public", "live", health.live),
    Route("/readyz", ("GET",), "public", "live", health.ready),
    Route("/health", ("GET",), "public", "live", health.healthy),
    Route("/ping", ("GET", "POST"), "public", "live", health.healthy),
)

PUBLIC_PATHS = frozenset(route.path for route in ROUTES if route.auth == "public")

_ANTHROPIC_PATHS = frozenset(route.path for route in ROUTES if route.errors == "anthropic")


def error_shape(path: str) -> ErrorShape:
    """Whose words an error on this path uses."""
    return "anthropic" if path in _ANTHROPIC_PATHS else "openai"


def path_pattern(path: str) -> re.Pattern[str]:
    """Returns the pattern of a route's path with names in braces."""
    names = {"": "[^/]+", ":path": ".+"}
    pieces = re.split(r"\{\w+(:path)?\}", path)
    found = [names[piece or ""] if number % 2 else re.escape(piece) for number, piece in enumerate(pieces)]
    return re.compile("".join(found))
