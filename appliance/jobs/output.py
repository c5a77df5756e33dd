"""The output file. It is the only record of finished work: a request whose whole line is in it is never run again."""

import asyncio
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from appliance.base.errors import ApplianceError


class LineResponse(msgspec.Struct, frozen=True):
    status_code: int
    request_id: str
    body: msgspec.Raw


class LineFailure(msgspec.Struct, frozen=True):
    code: str
    message: str


class OutputLine(msgspec.Struct, frozen=True):
    """`id` is the key of the input line (`InputLine.key`)."""

    id: str
    custom_id: str | None
    response: LineResponse | None
    error: LineFailure | None


class OutputFile:
    """Appends lines and makes them durable. One run at a time may have it open."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        """Without `resume` the file starts anew. Raises ApplianceError when it cannot be had, or another run has it."""
        self.path = path
        try:
            self._stream: BinaryIO = path.open("r+b" if path.exists() else "w+b")
        except OSError as error:
            raise ApplianceError(f"cannot write {path}: {error.strerror}") from None
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._stream.close()
            raise ApplianceError(f"another batch run writes {path}", hint="wait for it, or end it") from None
        if not resume:
            self._stream.truncate(0)

    def read_done(self) -> Iterator[OutputLine]:
        """What earlier runs wrote. A last line without its end was torn by a kill and is cut off.

        Raises ApplianceError for a line in the middle that no batch run wrote.
        """
        self._stream.seek(0)
        whole = 0
        for number, line in enumerate(self._stream, 1):
            if not line.endswith(b"\n"):
                break
            try:
                yield msgspec.json.decode(line, type=OutputLine)
            except msgspec.DecodeError as error:
                raise ApplianceError(
                    f"{self.path}:{number}: not a line of a batch output: {error}",
                    hint="choose another output file, or --no-resume to start this one anew",
                ) from None
            whole += len(line)
        self._stream.truncate(whole)
        self._stream.seek(whole)

    def append(self, lines: list[bytes]) -> None:
        """Blocks until they are on the disk."""
        self._stream.write(b"".join(lines))
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        self._stream.close()


class GroupCommit:
    """Writes what gathered while the disk was busy in one go, off the event loop."""

    def __init__(self, output: OutputFile) -> None:
        self._output = output
        self._pending: list[bytes] = []
        self._has_pending = asyncio.Event()
        self._is_closing = False
        self._task = asyncio.create_task(self._run(), name="batch output")

    def put(self, line: bytes) -> None:
        """`line` with its end."""
        self._pending.append(line)
        self._has_pending.set()

    async def close(self) -> None:
        """Writes the rest. Raises what writing raised."""
        self._is_closing = True
        self._has_pending.set()
        await self._task

    @property
    def failure(self) -> BaseException | None:
        return self._task.exception() if self._task.done() and not self._task.cancelled() else None

    async def _run(self) -> None:
        while self._pending or not self._is_closing:
            await self._has_pending.wait()
            self._has_pending.clear()
            lines, self._pending = self._pending, []
            if lines:
                await asyncio.to_thread(self._output.append, lines)


class ErrorCopies:
    """A second file with the lines that failed. It is derived: each run writes it anew from the output."""

    def __init__(self, path: Path) -> None:
        """Nothing is written before a line fails, but what an earlier run left is removed."""
        self._path = path
        self._stream: BinaryIO | None = None
        path.unlink(missing_ok=True)

    def add(self, line: OutputLine) -> None:
        """Keeps lines with an error, passes over others."""
        if line.error is None:
            return
        if self._stream is None:
            self._stream = self._path.open("wb", buffering=0)
        self._stream.write(msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
