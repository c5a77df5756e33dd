"""The adapters of requests: those of the plan, and folders that a request names, which are read once."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from appliance.offline.errors import InvalidRequestError
from appliance.offline.params import LoRARequest
from appliance.plan.types import AdapterPlan, EnginePlan
from appliance.requests.adapters import read_folder
from appliance.service.adapter_sets import AdapterChange, AdapterSetError, changed_set


class OfflineAdapters:
    """The set that the engines serve. Where no more fit, one that no request has used for longest gives way."""

    def __init__(self, plan: EnginePlan, change: Callable[[EnginePlan], Awaitable[None]]) -> None:
        self.plan = plan  # with the adapters that are served now
        self._change = change
        self._changing = asyncio.Lock()
        self._recent: dict[str, None] = {}

    async def name_of(self, wanted: LoRARequest | None) -> str | None:
        """Returns the name of an adapter, which is served from now on. Raises InvalidRequestError, ApiError."""
        if wanted is None:
            return None
        async with self._changing:
            known = None if self.plan.adapters is None else self.plan.adapters.named(wanted.lora_name)
            if known is None or not _is_same(known, wanted):
                await self._load(wanted, replaces=known is not None and known.origin == "lookup")
            self._recent.pop(wanted.lora_name, None)
            self._recent[wanted.lora_name] = None
            return wanted.lora_name

    async def _load(self, wanted: LoRARequest, *, replaces: bool) -> None:
        if self.plan.adapters is None:
            raise InvalidRequestError(
                f"the adapter {wanted.lora_name!r} has no place: LoRA is off",
                param="lora_request",
                hint="LLM(model, enable_lora=True), or a spec with a section lora",
            )
        if not wanted.lora_path:
            raise InvalidRequestError(f"no adapter {wanted.lora_name!r} is served, and lora_path is empty")
        adapter = await read_folder(self.plan, wanted.lora_name, Path(wanted.lora_path).expanduser().absolute())
        found = msgspec.structs.replace(adapter, origin="lookup", parent=wanted.base_model_name)
        try:
            plan = changed_set(self.plan, AdapterChange(load=found, replaces=replaces, recent=tuple(self._recent)))
            await self._change(plan)
        except AdapterSetError as error:
            raise InvalidRequestError(str(error), param="lora_request", hint=error.hint) from error
        self.plan = plan


def _is_same(known: AdapterPlan, wanted: LoRARequest) -> bool:
    return not wanted.lora_path or Path(known.path).resolve() == Path(wanted.lora_path).expanduser().resolve()
