"""Calls to the engine that are answered once: utility calls, and probes of one token."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Protocol

import msgspec

from appliance.engine.adapter_messages import AdapterSet
from appliance.engine.extension_messages import ExtensionCall
from appliance.engine.messages import (
    ErrorKind,
    GenerateRequest,
    SamplingParams,
    SequenceOutput,
    UtilityMethod,
    UtilityRequest,
    UtilityResult,
)
from appliance.engine.pause_messages import PauseMode
from appliance.engine.sleep_messages import SleepLevel, SleepTag
from appliance.engine.weight_messages import Change, SettleWeights, UpdateWeights, WeightUpdate
from appliance.plan.types import AdapterPlan
from appliance.service.errors import RequestFailedError
from appliance.service.link import EngineLink

_PROBE = "probe-"  # begins the ids of probes, which no request's does


class Abort(Protocol):
    def __call__(self, keys: list[str], index: int | None = None) -> None:
        """Ends requests in the engine, or of each the sequence `index` alone. Without an engine there are none."""


class EngineCalls:
    """Waits for the answers of one engine.

    `link` gives the way to the engine, and raises RequestFailedError when there is none.
    """

    def __init__(self, link: Callable[[], EngineLink], abort: Abort) -> None:
        self._link = link
        self._abort = abort
        self._calls: dict[str, asyncio.Future[msgspec.Raw]] = {}
        self._probes: dict[str, asyncio.Future[None]] = {}
        self._ids = itertools.count()

    async def call(self, method: UtilityMethod) -> msgspec.Raw:
        """Makes a utility call (see UtilityRequest). Raises RequestFailedError when the engine is gone or refuses."""
        return await self._ask(lambda call_id: UtilityRequest(call_id=call_id, method=method))

    async def reset_prefix_cache(self, *, preempts: bool) -> msgspec.Raw:
        """Empties the prefix cache; preempts: what runs gives its blocks back first. Returns whether it is empty.
        Raises like `call`."""
        return await self._ask(
            lambda call_id: UtilityRequest(call_id=call_id, method="reset_prefix_cache", preempts=preempts)
        )

    async def pause(self, mode: PauseMode, *, clears_cache: bool) -> None:
        """Has the engine hold requests back; returns once no request runs. Raises RequestFailedError like `call`."""
        await self._ask(
            lambda call_id: UtilityRequest(call_id=call_id, method="pause", mode=mode, clears_cache=clears_cache)
        )

    async def start_trace(self) -> None:
        """Starts a profile with a trace of each step. Raises RequestFailedError like `call`."""
        await self._ask(lambda call_id: UtilityRequest(call_id=call_id, method="start_profile", traced=True))

    async def sleep(self, level: SleepLevel) -> msgspec.Raw:
        """Puts the engine to sleep; returns a SleepStats. Raises RequestFailedError like `call`."""
        return await self._ask(lambda call_id: UtilityRequest(call_id=call_id, method="sleep", level=level))

    async def wake_up(self, tags: tuple[SleepTag, ...]) -> msgspec.Raw:
        """Brings parts of a sleeping engine back, all without tags; returns a SleepStats. Raises like `call`."""
        return await self._ask(lambda call_id: UtilityRequest(call_id=call_id, method="wake_up", tags=tags))

    async def call_extension(self, call: ExtensionCall) -> msgspec.Raw:
        """Calls a method of the operator's own on every rank; returns a list of ExtensionAnswer. Raises like `call`."""
        return await self._ask(lambda call_id: UtilityRequest(call_id=call_id, method="call_extension", call=call))

    async def update_weights(self, update: WeightUpdate) -> msgspec.Raw:
        """Replaces weights; returns a WeightStats. Raises like `call`; then the engine goes on with those before."""
        return await self._ask(lambda call_id: UpdateWeights(call_id=call_id, update=update))

    async def stage_weights(self, update: WeightUpdate) -> None:
        """Has new weights read and checked, which then wait for `settle_weights`. Raises like `update_weights`."""
        await self._ask(lambda call_id: UpdateWeights(call_id=call_id, update=update, is_held=True))

    async def settle_weights(self, *, is_wanted: bool) -> msgspec.Raw:
        """Has the weights that wait put in place, or forgotten; returns a WeightStats. Raises like `call`."""
        return await self._ask(lambda call_id: SettleWeights(call_id=call_id, is_wanted=is_wanted))

    async def change_adapters(self, adapters: tuple[AdapterPlan, ...]) -> None:
        """Makes the engine serve these adapters and no others. Raises RequestFailedError when it is gone or refuses;
        then it goes on with those before."""
        await self._ask(lambda call_id: AdapterSet(call_id=call_id, adapters=adapters))

    async def _ask(self, message: Callable[[str], UtilityRequest | Change]) -> msgspec.Raw:
        """Sends the message of a call id, and waits for its answer."""
        link, call_id = self._link(), format(next(self._ids), "x")
        answer: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = answer
        link.send(message(call_id))
        try:
            return await answer
        finally:
            self._calls.pop(call_id, None)

    async def probe(self) -> None:
        """Sends one token through the scheduler. It counts as no request, and no limit of the client holds it back.

        Raises RequestFailedError when the engine is gone or fails it. A caller that is cancelled ends it in the engine.
        """
        link, key = self._link(), f"{_PROBE}{next(self._ids):x}"
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._probes[key] = answer
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        link.send(GenerateRequest(request_id=key, prompt_token_ids=[0], sampling=sampling))
        try:
            await answer
        finally:
            del self._probes[key]
            if answer.cancelled():
                self._abort([key])

    def answered(self, result: UtilityResult) -> None:
        """Takes the engine's answer to a call."""
        answer = self._calls.get(result.call_id)
        if answer is None or answer.done():
            return
        if result.error is not None:
            answer.set_exception(RequestFailedError(ErrorKind.INTERNAL, result.error))
        else:
            answer.set_result(result.value)

    def probed(self, output: SequenceOutput) -> bool:
        """Takes an output of a probe; returns False for the output of a request."""
        if not output.request_id.startswith(_PROBE):
            return False
        answer = self._probes.get(output.request_id)
        if answer is not None and not answer.done():
            if output.error is not None:
                answer.set_exception(RequestFailedError(output.error_kind or ErrorKind.INTERNAL, output.error))
            else:
                answer.set_result(None)
        return True

    def fail_all(self, reason: str) -> None:
        """Fails every call and probe that waits."""
        for call in self._calls.values():
            if not call.done():
                call.set_exception(RequestFailedError(ErrorKind.UNAVAILABLE, reason))
        for probe in self._probes.values():
            if not probe.done():
                probe.set_exception(RequestFailedError(ErrorKind.UNAVAILABLE, reason))
