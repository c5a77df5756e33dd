"""Paths of other servers' APIs that are not served here, and why, so that a client reads more than "not found"."""

import re

from appliance.server.http.routes import ROUTES, path_pattern

_AUDIO = "models that hear or speak are not in this version"
_REMOTE = "nothing of the engine can be called from outside"
_REASONS: dict[str, str] = {
    "/embeddings|/embed": "the paths are /v1/embeddings and /v2/embed",
    "/v1/audio/.*|/v1/realtime.*": _AUDIO,
    "/v1/images/.*|/v1/videos.*": "models that draw are not in this version",
    "/v1/moderations": "there is no moderation model in this version",
    "/v1/(assistants|threads|vector_stores|conversations|evals|containers|fine_tuning|uploads).*": (
        "of what is stored there are responses, files and batches here"
    ),
    "/server_info|/reset_(prefix|mm)_cache": _REMOTE,
    "/(init|destroy)_weights_update_group|/init_weight_transfer_engine|/update_weights(_from_(tensor|distributed))?": (
        "weights come from a checkpoint, by /update_weights_from_disk"
    ),
    "/get_tokenizer_info": "the path is /tokenizer_info, where the spec enables it",
    "/redoc": "the reference is at /docs",
    "/inference/v1/derender|/v1/(chat/)?completions/derender": "/detokenize turns token ids into text",
}
_ABSENT = tuple((re.compile(pattern), reason) for pattern, reason in _REASONS.items())
_SWITCHED = tuple((path_pattern(route.path), route.methods) for route in ROUTES)


def _switch(path: str) -> str:
    """Returns the fields of the spec that decide whether a path is served."""
    if path in ("/sleep", "/wake_up", "/is_sleeping"):
        return "model.enable_sleep_mode"
    if path in ("/start_profile", "/stop_profile"):
        return "observability.profiler_dir"
    if path in ("/update_weights_from_disk", "/get_weight_version"):
        return "model.weight_update_paths"
    if path in ("/pause", "/resume", "/is_paused"):
        return "model.weight_update_paths, model.enable_sleep_mode"
    is_of_adapters = path.endswith(("load_lora_adapter", "/lora-adapters"))
    return "lora.allow_runtime_updating" if is_of_adapters else "endpoints.apis, endpoints.http"


def reason_for_absence(method: str, path: str) -> str | None:
    """Returns why a known path is not served here; None for an unknown path."""
    method = "GET" if method == "HEAD" else method
    if any(method in methods and pattern.fullmatch(path) for pattern, methods in _SWITCHED):
        return f"it is switched off here ({_switch(path)})"
    return next((reason for pattern, reason in _ABSENT if pattern.fullmatch(path)), None)
