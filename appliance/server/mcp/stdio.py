"""A server of tools that we start: one message a line over its standard input and output.

It has a session of its own, so that closing ends what it has started as well. Where this process is killed the kernel
kills the server, and whatever the server has started reads the end of its input.
"""

import asyncio
import os
import re
import signal
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from appliance.base.log import fields, logger
from appliance.base.prctl import end_with_parent
from appliance.server.mcp.messages import (
    ToolServerError,
    notification_bytes,
    read_message,
    reply_bytes,
    request_bytes,
    too_long,
)
from appliance.server.mcp.open_calls import OpenCalls

_log = logger("tools")
_END_WITHIN_S: Final = 2.0  # after the end of its input, before it is killed
_MAX_GARBAGE: Final = 100  # lines that are no messages
_KEPT_ERRORS: Final = 2000  # characters of what it said last on its standard error
_ID: Final = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*[,}]')


class StdioTransport:
    """max_bytes: of one message from the server."""

    def __init__(self, process: Process, max_bytes: int) -> None:
        self._process = process
        self._max_bytes = max_bytes
        self._calls = OpenCalls()
        self._num_garbage = 0
        self._errors = ""
        self._last_heard = time.monotonic()
        self._is_closed = False
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._read_errors())]

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str], max_bytes: int) -> "StdioTransport":
        """Raises OSError when the command cannot be run."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=dict(environment),
            limit=max_bytes,
            start_new_session=True,
            preexec_fn=partial(_end_with, os.getpid()),
        )
        return cls(process, max_bytes)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def last_heard(self) -> float:
        return self._last_heard

    async def request(self, method: str, params: dict[str, Any]) -> msgspec.Raw:
        with self._calls.begun() as call:
            try:
                await self._send(request_bytes(call.number, method, params))
                return await call.answer
            except asyncio.CancelledError:
                await self._give_up(call.number)
                raise

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        await self._send(notification_bytes(method, params))

    async def close(self) -> None:
        """Ends the server, and what it has started."""
        self._fail("it was ended")
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(_END_WITHIN_S):
                await self._process.wait()
        except TimeoutError:
            pass  # it is killed below, as is what it has left behind
        _kill_group(self._process.pid)
        await self._process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self, message: bytes) -> None:
        stdin = self._process.stdin
        if self._is_closed or stdin is None:
            raise ToolServerError("the server has ended")
        try:
            stdin.write(message + b"\n")
            await stdin.drain()
        except (OSError, RuntimeError) as error:
            raise ToolServerError("the server has ended") from error

    async def _give_up(self, number: int) -> None:
        """Tells the server that nobody waits; one that does not read its input has to guess."""
        try:
            async with asyncio.timeout(0.1):
                await self.notify("notifications/cancelled", {"requestId": number, "reason": "nobody waits"})
        except (ToolServerError, TimeoutError):
            _log.debug("a server of tools was not told of a cancelled call")

    async def _read(self) -> None:
        reason = "the server has ended"
        try:
            while (line := await self._line()) is not None and self._num_garbage <= _MAX_GARBAGE:
                await self._take(line)
            if self._num_garbage > _MAX_GARBAGE:
                reason = "the server writes what are no messages"
        except (OSError, ToolServerError) as error:
            reason = str(error)
        if not self._is_closed:
            last = self._errors.strip().rpartition("\n")[2]
            _log.warning("a server of tools has ended", extra=fields(reason=reason, said=last))
            self._fail(reason)
            _kill_group(self._process.pid)

    async def _take(self, line: bytes) -> None:
        self._last_heard = time.monotonic()
        message = read_message(line)
        if message is None:
            self._num_garbage += bool(line.strip())
        elif message.is_answer:
            self._calls.take(message)
        elif message.wants_reply:
            await self._send(reply_bytes(message))

    async def _line(self) -> bytes | None:
        """Returns None at the end. A line that is too long is thrown away as it comes, and its own call fails."""
        reader = self._process.stdout
        assert reader is not None
        head = b""
        while True:
            try:
                rest = await reader.readuntil(b"\n")
            except asyncio.LimitOverrunError as error:
                part = await reader.readexactly(error.consumed)
                head = head or part[:256]
                continue
            except asyncio.IncompleteReadError:
                return None
            if not head:
                return rest
            self._refuse_long(head)
            head = b""

    def _refuse_long(self, head: bytes) -> None:
        """`head`: its beginning, which has the number of the call. Raises ToolServerError where it has none."""
        problem, number = too_long(self._max_bytes), _ID.search(head)
        if number is None or not self._calls.fail(int(number[1]), str(problem)):
            raise problem

    async def _read_errors(self) -> None:
        reader = self._process.stderr
        assert reader is not None
        while data := await reader.read(4096):
            self._errors = (self._errors + data.decode("utf-8", "replace"))[-_KEPT_ERRORS:]

    def _fail(self, reason: str) -> None:
        self._is_closed = True
        self._calls.fail_all(reason)


def _kill_group(pid: int) -> None:
    """Kills the processes that are left of the session that `pid` leads, or led."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # none is left


def _end_with(parent: int) -> None:
    if not end_with_parent(parent):
        os._exit(1)
