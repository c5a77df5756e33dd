"""A link to an engine in a thread of this process, for batch, bench and the Python API."""

import asyncio
import queue
import threading

from appliance.base.log import logger
from appliance.engine.inproc import InprocEngine
from appliance.engine.messages import EngineEvent, EngineMessage, Fatal
from appliance.service.link import EventHandler

_log = logger("service")


class ThreadLink:
    """Steps run as long as there is work; the thread sleeps when there is none."""

    def __init__(self, engine: InprocEngine, on_event: EventHandler) -> None:
        self._engine = engine
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._inbox: queue.SimpleQueue[EngineMessage | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def send(self, message: EngineMessage) -> None:
        self._inbox.put(message)

    def close(self) -> None:
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._take_in():
                events = self._engine.receive()
                if events:
                    self._loop.call_soon_threadsafe(self._deliver, events)
        except Exception as error:  # noqa: BLE001 - after any exception, every open request must get an error
            _log.exception("the in-process engine died")
            self._loop.call_soon_threadsafe(self._on_event, Fatal(f"{type(error).__name__}: {error}"))
        finally:
            self._engine.close()

    def _take_in(self) -> bool:
        """Hands over what waits; blocks when the engine is idle. False when the link was closed."""
        while True:
            try:
                message = self._inbox.get(block=not self._engine.has_work)
            except queue.Empty:
                return True
            if message is None:
                return False
            self._engine.send(message)

    def _deliver(self, events: list[EngineEvent]) -> None:
        for event in events:
            self._on_event(event)
