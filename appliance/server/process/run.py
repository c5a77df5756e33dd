"""One server process: it supervises the engine, answers HTTP, and drains when it is asked to end."""

import asyncio
import signal
import socket
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
import uvloop

from appliance.base.environ import cache_dir
from appliance.base.errors import ApplianceError
from appliance.base.log import configure, fields, logger
from appliance.engine.messages import EngineEvent
from appliance.plan.types import EnginePlan
from appliance.server.batches.worker import BatchWorker
from appliance.server.http.app import make_app
from appliance.server.http.certificates import Certificates
from appliance.server.http.listen import adopt, bind, release, url_of
from appliance.server.process.live import Control, LiveApp
from appliance.server.process.running import QuietServer, RunningServer, route_uvicorn_logs, uvicorn_config
from appliance.server.state import ServerState, make_state
from appliance.service.engine_spawn import SpawnedEngine, sockets_beside
from appliance.service.engines import EngineService, make_engines
from appliance.service.exporting import Exporters, figures_of
from appliance.service.health import EngineHealth, EngineState, Health
from appliance.service.metrics import ServiceMetrics
from appliance.service.slo_gate import check_gate
from appliance.service.status_file import StatusFile, tell, tell_given_up
from appliance.service.supervisor import EnginePaths
from appliance.service.text_side import TextSide, load_text_side
from appliance.store.store import Store

_log = logger("server")


def run_server(
    plan_path: Path,
    status: StatusFile,
    engine_command: Sequence[str] = (),
    store_folder: Path | None = None,
    engine: SpawnedEngine | None = None,
    listener: int | None = None,
    is_gated: bool = False,
) -> int:
    """Serves the plan until it is asked to end; returns the exit code.

    The folder of `status`, if it has one, also receives commands (service.control). Errors of the start are logged and
    in the status. `engine`: one that was started already, with the same plan. `listener`: the descriptor
    of a socket that is taken over; then nothing is accepted before the engine is ready. `is_gated`: nor before it has
    kept the plan's targets in a few requests of ours; where it has not, the server ends with that reason.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # means something once we serve
    try:
        plan = msgspec.json.decode(plan_path.read_bytes(), type=EnginePlan)
        configure(plan.serving.logs.level, config_file=plan.serving.logs.config_file)
        route_uvicorn_logs()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            store = Store(plan.serving.store, store_folder)
            server = _Server(plan, plan_path, status, engine_command, store, engine)
            runner.run(server.run(listener, is_gated=is_gated))
    except (ApplianceError, OSError, msgspec.DecodeError) as error:
        _log.error("the server cannot run", extra=fields(reason=str(error)))
        status.write("failed", reason=str(error))
        return 1
    else:
        status.write("stopped")
        return 0
    finally:
        status.close()


class _Server:
    """The parts of one server and their order of start and end."""

    def __init__(
        self,
        plan: EnginePlan,
        plan_path: Path,
        status: StatusFile,
        engine_command: Sequence[str],
        store: Store,
        engine: SpawnedEngine | None,
    ) -> None:
        self._plan = plan
        self._store = store
        self._status = status
        self._started = time.monotonic()
        self._plan_path = plan_path
        self._state_folder = status.folder
        self._engine_command = engine_command
        self._engine = engine
        self._was_ready = False
        self._exporters = Exporters(plan.serving.exporters)
        self._url = ""
        self._running: RunningServer | None = None
        self._health: EngineHealth = Health()  # the engines' own, once they are started

    async def run(self, inherited: int | None, *, is_gated: bool) -> None:
        listen = self._plan.serving.listen
        certificates = Certificates(listen.tls) if listen.tls is not None else None
        listener = adopt(inherited) if inherited is not None else bind(listen)
        self._url = url_of(listener, listen)
        self._status.write("listening", url=self._url)
        metrics = ServiceMetrics(self._plan.model.served_names[0])
        with sockets_beside(self._engine) as sockets:
            paths = EnginePaths(self._plan_path.resolve(), sockets)
            client, supervisor = make_engines(
                self._plan, paths, metrics, self._on_event, self._engine_command, self._engine
            )
            self._health = supervisor.health
            supervisor.start()
            try:
                text = await asyncio.to_thread(load_text_side, self._plan, cache_dir())
                client.use_text(text)
                state = make_state(self._plan, client, metrics, supervisor.health, text.tokenizer, self._store)
                metrics.describe(self._plan)
                if inherited is not None or is_gated:
                    _require_ready(await supervisor.settled())
                if is_gated:
                    await self._pass_gate(supervisor, text)
                await self._serve(state, supervisor, listener, certificates)
            finally:
                is_shared = self._running is not None and self._running.is_shared
                release(listener, listen, is_shared=is_shared)
                await supervisor.stop()
                self._store.close()

    async def _pass_gate(self, supervisor: EngineService, text: TextSide) -> None:
        gate = self._plan.serving.gate
        if gate is not None:
            self._status.write("phase", name="gate", seconds=0.0, done=0, total=0, ended=False)
            for endpoint in supervisor.endpoints:
                await check_gate(self._plan, gate, endpoint, text, supervisor.health)

    async def _serve(
        self, state: ServerState, supervisor: EngineService, listener: socket.socket, certificates: Certificates | None
    ) -> None:
        app = LiveApp(make_app(state))
        config = uvicorn_config(self._plan.serving, app)
        config.load()
        config.ssl = certificates.context if certificates is not None else None
        server = QuietServer(config)
        running = self._running = RunningServer(state, supervisor, server, app, certificates, self._plan_path.resolve())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, running.terminate)
        if self._state_folder is not None:
            control = Control(self._state_folder, self._status, running, listener)
            loop.add_signal_handler(signal.SIGHUP, control.wake)
        self._announce()
        batches = asyncio.create_task(BatchWorker(lambda: running.state).run(), name="batches")
        exports = asyncio.create_task(self._exporters.run(partial(figures_of, state.metrics)), name="exports")
        serving = asyncio.create_task(server.serve([listener]))
        settled = asyncio.create_task(supervisor.settled())
        await asyncio.wait({serving, settled}, return_when=asyncio.FIRST_COMPLETED)
        if not serving.done() and settled.result().state is EngineState.FAILED:
            server.should_exit = True
            await serving
            _require_ready(settled.result())
        await serving
        settled.cancel()
        batches.cancel()
        exports.cancel()
        await asyncio.gather(batches, exports, return_exceptions=True)
        await running.state.tools.close()
        if running.state.tracer is not None:
            await asyncio.to_thread(running.state.tracer.close)
        if self._plan.serving.has_engine_inside:
            _require_alive(supervisor.health)

    def _on_event(self, engine: int, event: EngineEvent | Health) -> None:
        tell(self._status, event, engine if self._plan.parallel.replicas > 1 else None)
        if isinstance(event, Health):
            if event.state is EngineState.FAILED:
                tell_given_up(self._status, self._health)
                if self._plan.serving.has_engine_inside and self._running is not None:
                    self._running.end_now()
            self._announce()

    def _announce(self) -> None:
        """Says once that all is ready: the engines, and the server with its signal handlers, whichever comes last."""
        engines = self._health.replicas.values() or [self._health]
        if self._running is not None and not self._was_ready and all(each.is_ready for each in engines):
            self._was_ready = True
            self._status.write("ready", url=self._url, seconds=round(time.monotonic() - self._started, 3))


def _require_alive(health: EngineHealth) -> None:
    """Raises ApplianceError where the engine of this process is gone: what starts the server starts both again."""
    if health.state is EngineState.FAILED:
        raise ApplianceError(f"the engine in this process ended: {health.reason}")


def _require_ready(settled: EngineHealth) -> None:
    if settled.state is EngineState.FAILED:
        raise ApplianceError(f"the engine did not start: {settled.reason}")
