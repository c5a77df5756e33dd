"""Changes of a running server: its plan, its listener, its end."""

import asyncio
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from appliance.base.errors import ApplianceError
from appliance.base.log import fields, logger
from appliance.service.control import Handover, Reload, read_command
from appliance.service.status_file import StatusFile

_log = logger("server")


class LiveApp:
    """The application of the newest plan. A request stays with the one that took it until its last byte."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.is_retiring = False

    def use(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, _closing(send) if self.is_retiring else send)


def _closing(send: Send) -> Send:
    """Clients that keep a connection open come back through the listener, where another server answers."""

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["connection"] = "close"
        await send(message)

    return closing


class Changeable(Protocol):
    """Changes that a server accepts. Each raises ApplianceError when it cannot, and then nothing has changed."""

    async def reload(self, command: Reload) -> None:
        """Raises OSError, msgspec.DecodeError as well."""

    def retire(self) -> None: ...


@dataclass(slots=True)
class Control:
    """Carries out the command of the state folder; its answer goes to the status file."""

    folder: Path
    status: StatusFile
    server: Changeable
    listener: socket.socket
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def wake(self) -> None:
        """Handles SIGHUP: a task reads the command, obeys it and answers."""
        task = asyncio.create_task(self._obey(), name="control")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _obey(self) -> None:
        try:
            command = read_command(self.folder)
        except (OSError, msgspec.DecodeError) as error:
            _log.error("a signal without a command", extra=fields(reason=str(error)))
            return
        reason = ""
        try:
            match command:
                case Reload():
                    await self.server.reload(command)
                case Handover():
                    await asyncio.to_thread(_send_listener, self.listener, command.to)
                case _:
                    self.server.retire()
        except (ApplianceError, OSError, msgspec.DecodeError) as error:
            reason = str(error)
        name = type(command).__name__.lower()
        _log.info("told from outside", extra=fields(command=name, refused=reason))
        self.status.write("answer", id=command.id, ok=not reason, reason=reason)


def _send_listener(listener: socket.socket, place: str) -> None:
    with socket.socket(socket.AF_UNIX) as meeting:
        meeting.connect(place)
        socket.send_fds(meeting, [b"\0"], [listener.fileno()])
