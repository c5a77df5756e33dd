"""The outputs of one request, between the engine's events and their reader."""

import asyncio
from collections.abc import Callable
from typing import Self

from appliance.service.errors import RequestFailedError
from appliance.service.requests import TextOutput

_UNREAD = 256  # outputs that wait for a reader before they are joined


class Turns:
    """Calls what was asked for once at the end of this turn of the event loop, with one wakeup for all."""

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due: list[Callable[[], None]] = []

    def at_end(self, call: Callable[[], None]) -> None:
        """`call` must not raise."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._run)
        self._due.append(call)

    def _run(self) -> None:
        due, self._due = self._due, []
        for call in due:
            call()


class OutputStream:
    """Iterates over lists of outputs: one list has everything since the last, so a slow reader gets few, large ones.

    A reader that follows is called instead, without a task: at the end of each turn of the event loop in which
    something came.

    Leaving the iteration early must be followed by `close` (or use the stream as a context manager): it ends the
    request in the engine.
    """

    def __init__(self, on_close: Callable[[], None], turns: Turns | None = None) -> None:
        self._on_close = on_close
        self._turns = turns or Turns()
        self._follower: Callable[[], None] | None = None
        self._is_due = False
        self._outputs: list[TextOutput] = []
        self._failure: RequestFailedError | None = None
        self._complete = False
        self._waiter: asyncio.Future[None] | None = None

    def put(self, output: TextOutput) -> None:
        self._outputs.append(output)
        if len(self._outputs) > _UNREAD:
            self._outputs = merged(self._outputs)
        self._wake()

    def complete(self) -> None:
        self._complete = True
        self._wake()

    def fail(self, failure: RequestFailedError) -> None:
        self._failure = failure
        self._wake()

    def close(self) -> None:
        """Ends the request if it still runs, and the iteration. Safe to call twice."""
        if not self._complete and self._failure is None:
            self._complete = True
            self._on_close()
            self._wake()

    @property
    def has_ended(self) -> bool:
        """Nothing comes after what `take` gives now."""
        return self._complete or self._failure is not None

    def follow(self, reader: Callable[[], None] | None) -> None:
        """`reader` takes what has come, and must not raise; it is called for what is there already. None: no more."""
        self._follower = reader
        if reader is not None:
            self._wake()

    def take(self) -> list[TextOutput]:
        """Everything since the last time; it may be nothing."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def check(self) -> None:
        """Raises RequestFailedError when the request failed."""
        if self._failure is not None:
            raise self._failure

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[TextOutput]:
        """Raises RequestFailedError when the request failed; what came before it is given first."""
        while not self._outputs:
            self.check()
            if self._complete:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.take()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wake(self) -> None:
        if self._follower is not None:
            if not self._is_due:
                self._is_due = True
                self._turns.at_end(self._call_follower)
            return
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _call_follower(self) -> None:
        self._is_due = False
        if self._follower is not None:
            self._follower()


def merged(outputs: list[TextOutput]) -> list[TextOutput]:
    """Joins the outputs of each sequence, so that a slow reader gets one event for them all."""
    if len(outputs) == 1:
        return outputs
    by_index: dict[int, TextOutput] = {}
    for output in outputs:
        first = by_index.setdefault(output.index, output)
        if first is not output:
            _join(first, output)
    return list(by_index.values())


def _join(first: TextOutput, then: TextOutput) -> None:
    first.text += then.text
    first.token_ids = first.token_ids + then.token_ids
    if then.logprobs is not None:
        first.logprobs = (first.logprobs or []) + then.logprobs
    first.num_cached_tokens += then.num_cached_tokens
    first.finish_reason, first.stop_reason = then.finish_reason, then.stop_reason
    first.vector = then.vector if first.vector is None else first.vector
    first.drafts = first.drafts if then.drafts is None else then.drafts
