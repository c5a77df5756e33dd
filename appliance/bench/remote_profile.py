"""The step profiler of a server: its debug routes."""

import httpx
import msgspec

from appliance.base.errors import ApplianceError
from appliance.bench.sse import BenchTarget
from appliance.engine.profile import EngineProfile

TIMEOUT_S = 60.0  # the call waits for the step that runs


def start_profile(target: BenchTarget) -> None:
    """Raises ApplianceError when the server has no such route."""
    _post(target, "start")


def stop_profile(target: BenchTarget) -> EngineProfile:
    """Raises ApplianceError when there is none: another client has stopped it, or the engine began anew."""
    profile = msgspec.json.decode(_post(target, "stop"), type=EngineProfile | None)
    if profile is None:
        raise ApplianceError(f"the profile of {target.url} was stopped by someone else, or its engine began anew")
    return profile


def _post(target: BenchTarget, action: str) -> bytes:
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    root = target.url.rstrip("/").removesuffix("/v1")
    try:
        answer = httpx.post(f"{root}/debug/profile/{action}", headers=headers, timeout=TIMEOUT_S)
        answer.raise_for_status()
    except httpx.HTTPError as error:
        hint = "serve its debug routes: endpoints.apis: [openai, debug]"
        raise ApplianceError(f"{target.url} cannot be profiled: {error}", hint=hint) from error
    return answer.content
