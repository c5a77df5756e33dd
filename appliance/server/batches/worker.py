"""Runs the batches of the store, one at a time a process, as the key that made each."""

import asyncio
import sqlite3
import uuid
from collections.abc import Callable
from contextlib import suppress

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from appliance.base.errors import ApplianceError
from appliance.base.log import fields, logger
from appliance.jobs.answerer import Answerer, asgi_answerer
from appliance.jobs.answering import BatchStoppedError
from appliance.jobs.lines import ENDPOINTS
from appliance.jobs.progress import BatchProgress
from appliance.jobs.runner import BatchOptions, run_batch
from appliance.requests.errors import ApiError
from appliance.server.batches.results import keep_results, problems_of, work_files
from appliance.server.http.app import answer
from appliance.server.http.callers import CALLER
from appliance.server.http.errors import error_response
from appliance.server.http.routes import ROUTES
from appliance.server.state import ServerState
from appliance.store.batches import BatchRecord

_log = logger("server")
SAVE_EVERY_S = 1.0
_LOOK_EVERY_S = 10.0  # for batches of processes that have gone
_PAUSE_S = 2.0  # after the engine was away

_NOT_SERVED = ApiError(404, "this server does not serve the batch's endpoint", code="unknown_path")
_ROUTES = {route.path: route for route in ROUTES if route.path in ENDPOINTS}


class _LeaseLostError(Exception):
    """Another process has taken the batch over."""


class BatchWorker:
    """`state` gives the newest one: a plan may change while a batch runs."""

    def __init__(self, state: Callable[[], ServerState]) -> None:
        self._newest = state
        self._runner = uuid.uuid4().hex
        self._answer = _answerer(state)

    @property
    def _state(self) -> ServerState:
        return self._newest()

    async def run(self) -> None:
        """Runs batches until it is cancelled; an unfinished batch is then left to the next process."""
        while True:
            if self._state.store.is_begun and self._state.health.is_ready:
                await self._run_all()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._state.open.batch_wanted.wait(), _LOOK_EVERY_S)
            self._state.open.batch_wanted.clear()
            if not self._state.health.is_ready:
                await asyncio.sleep(SAVE_EVERY_S)
                self._state.open.batch_wanted.set()

    async def _run_all(self) -> None:
        batches = self._state.store.batches
        while (batch := await asyncio.to_thread(batches.claim, self._runner)) is not None:
            try:
                await self._run_one(batch)
            except BatchStoppedError as error:
                _log.warning("a batch waits for the engine", extra=fields(batch=batch.id, reason=str(error)))
                batches.release(self._runner, batch.id)
                await asyncio.sleep(_PAUSE_S)
            except _LeaseLostError:
                _log.warning("a batch was taken over by another process", extra=fields(batch=batch.id))
            except (ApplianceError, OSError, sqlite3.Error) as error:
                _log.error("a batch failed", extra=fields(batch=batch.id, reason=str(error)))
                self._fail(batch, [{"code": "server_error", "message": str(error), "line": None, "param": None}])
            except asyncio.CancelledError:
                batches.release(self._runner, batch.id)
                raise

    async def _run_one(self, batch: BatchRecord) -> None:
        state, batches = self._state, self._state.store.batches
        if batch.status == "validating":
            total, problems = await asyncio.to_thread(problems_of, state.store, batch)
            if problems:
                self._fail(batch, problems)
                return
            batch.total = total
            batch.enter("in_progress", batches.clock())
        CALLER.set(state.keys.named(batch.owner) if batch.owner else None)
        if batch.owner and CALLER.get() is None:
            message = "the API key that made this batch is no more"
            self._fail(batch, [{"code": "invalid_api_key", "message": message, "line": None, "param": None}])
            return
        last = await self._drive(batch)
        batch.enter("finalizing", batches.clock())
        batches.save(self._runner, batch)
        await asyncio.to_thread(keep_results, state.store, batch)
        batch.enter(last, batches.clock())
        self._end(batch)

    async def _drive(self, batch: BatchRecord) -> str:
        """Answers the lines; returns the status that follows: completed, cancelled or expired."""
        num_slots = max(1, self._state.plan.scheduler.max_num_seqs // 2)  # the rest is for those who wait
        options = BatchOptions(order="completion", resume=True, max_concurrency=num_slots)
        seen = BatchProgress(total=batch.total)

        def tick(progress: BatchProgress) -> None:
            nonlocal seen
            seen = progress

        tokens = batch.input_tokens, batch.output_tokens  # of earlier runs
        running = asyncio.create_task(run_batch(work_files(self._state.store, batch.id), options, self._answer, tick))
        try:
            while not running.done():
                await asyncio.wait({running}, timeout=SAVE_EVERY_S)
                _note(batch, seen, tokens)
                if (end := self._must_end(batch)) is not None:
                    return end
            running.result()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        _note(batch, seen, tokens)
        return "completed"

    def _must_end(self, batch: BatchRecord) -> str | None:
        batches = self._state.store.batches
        is_ours, is_cancelled = batches.save(self._runner, batch)
        if not is_ours:
            raise _LeaseLostError
        if is_cancelled:
            batch.enter("cancelling", batches.clock())
            return "cancelled"
        return "expired" if batches.clock() > batch.expires_at else None

    def _fail(self, batch: BatchRecord, problems: list[dict[str, str | int | None]]) -> None:
        batch.errors = problems
        batch.enter("failed", self._state.store.batches.clock())
        self._end(batch)

    def _end(self, batch: BatchRecord) -> None:
        self._state.store.batches.save(self._runner, batch)
        self._state.store.remove_work(batch.id)


def _note(batch: BatchRecord, progress: BatchProgress, tokens: tuple[int, int]) -> None:
    batch.completed, batch.failed = progress.done - progress.failed, progress.failed
    batch.input_tokens = tokens[0] + progress.prompt_tokens
    batch.output_tokens = tokens[1] + progress.completion_tokens


def _answerer(state: Callable[[], ServerState]) -> Answerer:
    """The routes' own handlers, without the gate: who calls is known."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        now, route = state(), _ROUTES.get(scope["path"])
        if route is not None and route.is_served(now.plan.serving.routes):
            response = await answer(now, route, Request(scope, receive))
        else:
            response = error_response(_NOT_SERVED)
        await response(scope, receive, send)

    return asgi_answerer(app)
