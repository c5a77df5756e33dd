"""The outputs of one request, between the engine's events and whoever reads them."""

import asyncio
from collections.abc import Callable
from typing import Self

from appliance.service.errors import RequestFailedError
from appliance.service.requests import TextOutput

_UNREAD = 256  # outputs that wait for a reader before they are joined


class OutputStream:
    """Iterates over lists of outputs: one list has everything since the last, so a slow reader gets few, large ones.

    Leaving the iteration early must be followed by `close` (or use the stream as a context manager): it ends the
    request in the engine.
    """

    def __init__(self, on_close: Callable[[], None]) -> None:
        self._on_close = on_close
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

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[TextOutput]:
        """Raises RequestFailedError when the request failed; what came before it is given first."""
        while not self._outputs:
            if self._failure is not None:
                raise self._failure
            if self._complete:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        outputs, self._outputs = self._outputs, []
        return outputs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def merged(outputs: list[TextOutput]) -> list[TextOutput]:
    """Joins the outputs of each sequence: a reader that fell behind gets one event for them all."""
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
