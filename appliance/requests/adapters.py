"""Reads an adapter that a request asks for, and changes the set that is served."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from appliance.base.errors import ApplianceError
from appliance.checkpoint.adapter import read_adapter
from appliance.checkpoint.errors import CheckpointError
from appliance.plan.adapter_files import adapter_plan
from appliance.plan.types import AdapterPlan, EnginePlan
from appliance.requests.errors import ApiError, invalid
from appliance.service.adapter_sets import AdapterChange, AdapterSetError, Problem

ChangeAdapters = Callable[[AdapterChange], Awaitable[None]]
"""Changes the set that engine and server processes serve. Raises AdapterSetError."""

_CODES: dict[Problem, str] = {
    "known": "adapter_exists",
    "unknown": "adapter_not_found",
    "model": "adapter_name",
    "full": "too_many_adapters",
    "unplanned": "no_adapters",
    "refused": "adapter_refused",
}


async def read_folder(plan: EnginePlan, name: str, folder: Path) -> AdapterPlan:
    """Reads what an adapter is, its digest too, beside the event loop. Raises ApiError 404 for a folder that is not
    there, 400 for one that cannot be served."""
    if not await asyncio.to_thread(folder.is_dir):
        raise ApiError(404, f"No adapter found: there is no folder for {name!r}", param="lora_path", code="not_found")
    try:
        facts = await asyncio.to_thread(read_adapter, folder)
    except (CheckpointError, OSError) as error:
        raise invalid(
            "lora_path", f"the adapter {name!r} cannot be read: {_words(error)}", "adapter_refused"
        ) from error
    most = 0 if plan.adapters is None else plan.adapters.max_rank
    if facts.max_rank > most:
        message = f"the adapter {name!r} has rank {facts.max_rank}, and the slots are for ranks up to {most}"
        raise invalid("lora_path", f"{message}; hint: lora.max_rank, which needs a restart", "adapter_refused")
    return adapter_plan(name, facts)


def is_allowed(folder: Path, allowed: Sequence[str]) -> bool:
    """Returns whether requests may load from a folder, after links: below one of those that are allowed, if any are."""
    place = folder.resolve()
    return not allowed or any(place.is_relative_to(Path(each).resolve()) for each in allowed)


def refused(error: AdapterSetError, param: str) -> ApiError:
    """Returns the answer to a request whose change cannot be."""
    status = 404 if error.problem == "unknown" else 400
    return ApiError(status, _words(error), param=param, code=_CODES[error.problem])


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    hint = error.hint if isinstance(error, ApplianceError) else None
    return f"{error}; hint: {hint}" if hint else str(error)
