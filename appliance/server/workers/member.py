"""One worker as its keeper sees it: a process that exchanges messages, and is started again when it dies."""

import asyncio
import itertools
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from appliance.base.environ import with_changes
from appliance.base.log import fields, logger
from appliance.server.workers.messages import (
    FROM_WORKER,
    Channel,
    Count,
    Counted,
    Done,
    Failed,
    FromWorker,
    MemberChannel,
    Sample,
    ToWorker,
    Up,
    UsePlan,
)
from appliance.service.engine_process import process_end

_log = logger("server")
_FIRST_WAIT_S, _MOST_WAIT_S = 0.1, 5.0  # before it is started again
_STEADY_S = 10.0  # a life that long is no failure of the start
_MOST_UNANSWERED = 6  # counts in a row, each of seconds: then the process hangs


@dataclass(frozen=True, slots=True)
class Home:
    """The start values of all workers. `plan` is the newest that all have taken."""

    plan: Path
    store: Path
    page: Path
    listener: socket.socket
    count: int


class Member:
    """`heard` gets what the worker says that is no answer; `gone` is called when the process has ended."""

    def __init__(
        self,
        index: int,
        home: Callable[[], Home],
        heard: "Callable[[Member, FromWorker], None]",
        gone: "Callable[[Member], None]",
    ) -> None:
        self.index = index
        self.is_up = False
        self.has_been_up = False
        self.failure = ""
        self.counted: list[Sample] = []  # by this process, as far as it was asked
        self.load = 0
        self._num_unanswered = 0
        self._home = home
        self._heard = heard
        self._gone = gone
        self._channel: MemberChannel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._asked: dict[int, asyncio.Future[Done | Counted]] = {}
        self._ids = itertools.count()
        self._is_ending = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def send(self, message: ToWorker) -> None:
        """Sends a message. It is lost if the worker is not there: a new worker gets the state when it connects."""
        if self._channel is not None:
            self._channel.send(message)

    def end(self) -> None:
        """Stops starting it again; one that does not listen yet ends at once."""
        self._is_ending = True
        if not self.is_up:
            self.kill()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    async def use_plan(self, path: Path, within_s: float) -> str:
        """Why it refuses; empty when it does not, or is not there: it will start with the plan that holds then."""
        if not self.is_up:
            return ""
        try:
            answer = await self._ask(lambda number: UsePlan(number, str(path)), within_s)
        except (TimeoutError, ConnectionError) as error:
            return f"API process {self.index} did not answer" if isinstance(error, TimeoutError) else ""
        assert isinstance(answer, Done)
        return answer.reason

    async def count(self, within_s: float) -> None:
        """Brings `counted` and `load` up to date, if it answers. One that never does is ended, and started again."""
        if not self.is_up:
            return
        try:
            answer = await self._ask(Count, within_s)
        except (TimeoutError, ConnectionError) as error:
            self._num_unanswered += 1
            _log.warning("an API process was not counted", extra=fields(worker=self.index, reason=repr(error)))
            if self._num_unanswered >= _MOST_UNANSWERED:
                _log.error("an API process hangs", extra=fields(worker=self.index))
                self.kill()
            return
        self._num_unanswered = 0
        assert isinstance(answer, Counted)
        self.counted, self.load = answer.samples, answer.load

    async def keep_running(self) -> None:
        """Keeps the worker running until `end`, or until it fails before it was ever up."""
        wait_s = _FIRST_WAIT_S
        while not self._is_ending:
            began = time.monotonic()
            code = await self._run_once()
            self._gone(self)
            if self._is_ending or not self.has_been_up:
                return
            _log.error("an API process ended; it is started again", extra=fields(worker=self.index, code=code))
            wait_s = _FIRST_WAIT_S if time.monotonic() - began > _STEADY_S else min(2 * wait_s, _MOST_WAIT_S)
            await asyncio.sleep(wait_s)

    async def _run_once(self) -> int:
        self._num_unanswered = 0
        process, ours = self._spawn()
        self._process = process
        reader, writer = await asyncio.open_connection(sock=ours)
        self._channel = Channel(reader, writer, FROM_WORKER)
        listening = asyncio.create_task(self._listen(self._channel), name=f"worker {self.index}")
        try:
            await process_end(process.pid)
            await listening
        finally:
            listening.cancel()
            if process.poll() is None:
                process.kill()
            code = process.wait()
            self._channel.close()
            self._channel, self._process, self.is_up = None, None, False
            for asked in self._asked.values():
                if not asked.done():
                    asked.set_exception(ConnectionError("it has ended"))
        return code

    def _spawn(self) -> tuple["subprocess.Popen[bytes]", socket.socket]:
        home = self._home()
        ours, theirs = socket.socketpair()
        with theirs:
            given = {
                "plan": home.plan, "store": home.store, "page": home.page, "listener": home.listener.fileno(),
                "channel": theirs.fileno(), "index": self.index, "count": home.count,
            }  # fmt: skip
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "appliance.server.workers",
                    *(f"--{name}={value}" for name, value in given.items()),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(home.listener.fileno(), theirs.fileno()),
                start_new_session=True,  # a terminal's Ctrl-C reaches the keeper alone, which then drains
                env=with_changes(PYTHONUNBUFFERED="1"),
            )
        return process, ours

    async def _listen(self, channel: MemberChannel) -> None:
        async for message in channel.messages():
            match message:
                case Up():
                    self.is_up = self.has_been_up = True
                    self._heard(self, message)
                    if self._is_ending:
                        self.kill()  # it came after everybody was told
                case Done() | Counted():
                    if (asked := self._asked.get(message.id)) is not None and not asked.done():
                        asked.set_result(message)
                case Failed():
                    self.failure = message.reason
                case _:
                    self._heard(self, message)

    async def _ask(self, question: Callable[[int], ToWorker], within_s: float) -> Done | Counted:
        """Raises TimeoutError, ConnectionError."""
        number = next(self._ids)
        asked = self._asked[number] = asyncio.get_running_loop().create_future()
        self.send(question(number))
        try:
            return await asyncio.wait_for(asked, within_s)
        finally:
            del self._asked[number]


def describe_end(member: Member) -> str:
    return member.failure or f"API process {member.index} ended before it listened"
