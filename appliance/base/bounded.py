"""Calls code of the operator's own, each call for a bounded time, so that one that hangs costs its own request."""

import ctypes
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Final, TypeVar, cast

from appliance.base.log import fields, logger

MOST_HANGS: Final = 3  # of one plug-in; then it is called no more

T = TypeVar("T")
_log = logger("plugins")


class TookTooLongError(Exception):
    """A plug-in did not answer in time, or has not so often that it is called no more. The message names it."""


class StoppedError(Exception):
    """A plug-in raised what would end the process, such as SystemExit. The message says what."""


class _GivenUpError(BaseException):
    """Ends Python code that nobody waits for. It is no Exception, so that code which catches those ends too."""


@dataclass(slots=True)
class _Job:
    call: Callable[[], Any]
    answered: threading.Event = field(default_factory=threading.Event)
    value: Any = None
    error: BaseException | None = None


class BoundedCalls:
    """Safe to use from several threads: a call has a thread of its own while it runs. Threads are kept for later calls.

    They end with this object. A call that is late is given up: its thread ends with its next Python statement, or
    stays, and does not keep the process from ending. Code that holds the interpreter's lock in C cannot be left behind;
    the heartbeat finds it.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._idle: list[_Worker] = []
        weakref.finalize(self, _end, self._idle)
        self._hangs: Counter[str] = Counter()

    def run(self, name: str, call: Callable[[], T], more_s: float = 0.0) -> T:
        """Returns what `call` returns. Raises TookTooLongError, StoppedError, or the Exception of the call.

        name: of the plug-in, for messages, and by which those that hang are counted. more_s: what a large call gets.
        """
        most_s = self._most_s + more_s
        if self._hangs[name] >= MOST_HANGS:
            often = f"{name} took more than {most_s:g} s {MOST_HANGS} times"
            raise TookTooLongError(f"{often}, and is called no more until the next start")
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = _Worker()
        job = _Job(call)
        worker.start(job)
        if not job.answered.wait(most_s):
            worker.give_up()
            self._hangs[name] += 1
            _log.error("a plug-in hangs", extra=fields(plugin=name, seconds=most_s, times=self._hangs[name]))
            raise TookTooLongError(f"{name} took more than {most_s:g} s")
        self._idle.append(worker)
        if isinstance(job.error, Exception):
            raise job.error
        if job.error is not None:
            raise StoppedError(f"{name} raised {type(job.error).__name__}") from job.error
        return cast(T, job.value)


class _Worker:
    """A thread that runs one job after another."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="plugin", daemon=True)
        self._thread.start()

    def start(self, job: _Job) -> None:
        self._jobs.put(job)

    def end(self) -> None:
        """Ends the thread once its job ends."""
        self._jobs.put(None)

    def give_up(self) -> None:
        """Ends the thread once its job ends, and the job as soon as it runs Python code."""
        self.end()
        assert self._thread.ident is not None, "it was started"
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(_GivenUpError))

    def _run(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                try:
                    job.value = job.call()
                except BaseException as error:  # noqa: BLE001 - the caller is told, whatever it is
                    job.error = error
                job.answered.set()
                del job  # the next one may come late, and this one may hold much
        except _GivenUpError:
            return


def _end(idle: list[_Worker]) -> None:
    for worker in idle:
        worker.end()
