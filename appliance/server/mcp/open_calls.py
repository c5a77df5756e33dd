"""Calls whose answers come by one stream of messages, each with the number of its call."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from appliance.server.mcp.messages import RpcMessage, ToolServerError, result_of


class OpenCall(NamedTuple):
    number: int
    answer: asyncio.Future[msgspec.Raw]


class OpenCalls:
    """Those of one connection. What nobody waits for any more is ignored."""

    def __init__(self) -> None:
        self._open: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._num_begun = 0

    @contextmanager
    def begun(self) -> Iterator[OpenCall]:
        """Holds a call open until its answer was taken, or nobody wants it."""
        self._num_begun += 1
        call = OpenCall(self._num_begun, asyncio.get_running_loop().create_future())
        self._open[call.number] = call.answer
        try:
            yield call
        finally:
            del self._open[call.number]
            if not call.answer.cancel() and not call.answer.cancelled():
                call.answer.exception()  # so that nobody complains of one that was not taken

    def take(self, message: RpcMessage) -> None:
        """Gives an answer to its call."""
        answer = self._open.get(message.id) if isinstance(message.id, int) else None
        if answer is None or answer.done():
            return
        try:
            answer.set_result(result_of(message))
        except ToolServerError as error:
            answer.set_exception(error)

    def fail(self, number: int, reason: str) -> bool:
        """Returns False if there is no such call."""
        answer = self._open.get(number)
        if answer is not None and not answer.done():
            answer.set_exception(ToolServerError(reason))
        return answer is not None

    def fail_all(self, reason: str) -> None:
        for number in self._open:
            self.fail(number, reason)
