"""Looks for adapters that are not served when a request names one: in a folder, then by the operator's own code."""

import asyncio
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from appliance.base.plugin_types import ResolveAdapter
from appliance.base.plugins import PluginError, load_plugin
from appliance.plan.serving_types import AdapterRulesPlan
from appliance.plan.types import EnginePlan
from appliance.requests.adapters import ChangeAdapters, read_folder, refused
from appliance.requests.errors import ApiError
from appliance.service.adapter_sets import AdapterChange, AdapterSetError

MOST_WAITING: Final = 32  # requests for names that are looked for
RESOLVE_TIMEOUT_S: Final = 30.0  # others that wait for other names wait as long
MOST_RECENT: Final = 256  # names whose use is remembered
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")  # one part of a path, and not a hidden one


class AdapterResolver:
    """Loads what it finds. Adapters that were found like this give way to others, the one that was used longest ago
    first, when as many are in memory as may be."""

    def __init__(self, rules: AdapterRulesPlan) -> None:
        """Raises PluginError for a dotted path that cannot be imported."""
        self.rules = rules
        self._resolve = None if rules.resolver is None else _imported(rules.resolver)
        self._used: dict[str, None] = {}  # names of adapters, those used longest ago first
        self._turn = asyncio.Lock()
        self._num_waiting = 0

    def note_use(self, name: str) -> None:
        """Notes that a request names a served adapter."""
        self._used.pop(name, None)
        self._used[name] = None
        while len(self._used) > MOST_RECENT:
            del self._used[next(iter(self._used))]

    async def load(self, plan: Callable[[], EnginePlan], change: ChangeAdapters, name: str) -> bool:
        """Returns whether the adapter is served now. `plan` gives the present one.

        Raises ApiError 400 for one that was found and cannot be served, 429 when many requests wait for others.
        """
        if self._num_waiting >= MOST_WAITING:
            raise ApiError(429, "many adapters are being looked for; try again later", code="overloaded")
        self._num_waiting += 1
        try:
            async with self._turn:
                return await self._load(plan(), change, name)
        finally:
            self._num_waiting -= 1

    async def _load(self, plan: EnginePlan, change: ChangeAdapters, name: str) -> bool:
        if plan.adapters is not None and plan.adapters.named(name) is not None:
            return True  # another request has just loaded it
        folder = await self._folder(plan, name)
        if folder is None:
            return False
        adapter = await read_folder(plan, name, folder)
        try:
            await change(
                AdapterChange(load=msgspec.structs.replace(adapter, origin="lookup"), recent=tuple(self._used))
            )
        except AdapterSetError as error:
            if error.problem != "known":
                raise refused(error, "model") from error
        self.note_use(name)
        return True

    async def _folder(self, plan: EnginePlan, name: str) -> Path | None:
        if self.rules.resolver_dir is not None and _NAME.fullmatch(name):
            folder = Path(self.rules.resolver_dir) / name
            if await asyncio.to_thread(folder.is_dir):
                return folder
        if self._resolve is None:
            return None
        try:
            found = await asyncio.wait_for(self._resolve(plan.model.served_names[0], name), RESOLVE_TIMEOUT_S)
        except TimeoutError as error:
            message = f"lora.resolver has not found the adapter within {RESOLVE_TIMEOUT_S:g} s"
            raise ApiError(503, message, code="resolver_timeout", param="model") from error
        return None if found is None else Path(found)


def _imported(path: str) -> ResolveAdapter:
    found = load_plugin(path, "lora.resolver")
    if not inspect.iscoroutinefunction(found):
        hint = "async def f(model, name) that returns a folder or None"
        raise PluginError(f"lora.resolver: {path} is no coroutine function", hint=hint)
    resolve: ResolveAdapter = found
    return resolve
