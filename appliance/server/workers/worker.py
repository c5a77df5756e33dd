"""One API process of several: it answers HTTP on the shared socket, and does what the keeper says."""

import asyncio
import itertools
import signal
import socket
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvloop

from appliance.base.environ import cache_dir
from appliance.base.errors import ApplianceError
from appliance.base.log import configure, fields, logger
from appliance.plan.types import EnginePlan
from appliance.requests.errors import ApiError
from appliance.server.batches.worker import BatchWorker
from appliance.server.http.app import make_app
from appliance.server.http.certificates import Certificates
from appliance.server.http.listen import adopt
from appliance.server.process.live import LiveApp
from appliance.server.process.running import QuietServer, RunningServer, route_uvicorn_logs, uvicorn_config
from appliance.server.state import ServerState, make_state
from appliance.server.workers.engine_side import EngineSide
from appliance.server.workers.figures import samples_of
from appliance.server.workers.messages import (
    TO_WORKER,
    Ask,
    BatchWanted,
    ChangeSet,
    Channel,
    Count,
    Counted,
    Done,
    EngineNow,
    Failed,
    Here,
    Retire,
    SetChanged,
    Terminate,
    Totals,
    ToWorker,
    Up,
    UsePlan,
    WorkerChannel,
)
from appliance.server.workers.page import SharedPage
from appliance.service.adapter_sets import AdapterChange, AdapterSetError
from appliance.service.client import AdmissionLimits, EngineClient
from appliance.service.metrics import ServiceMetrics
from appliance.service.text_side import load_text_side
from appliance.store.store import Store

_log = logger("server")
_ANSWER_S = 5.0  # of the keeper


@dataclass(frozen=True, slots=True)
class Place:
    """The start values of a worker: descriptors of the listener and of its channel, and its number of how many.

    Worker 0 runs the batches.
    """

    plan: Path
    store: Path
    page: Path
    listener: int
    channel: int
    index: int
    count: int


def run_worker(place: Place) -> int:
    """Serves until it is asked to end, or the keeper is gone; returns the exit code."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(place))


async def _run(place: Place) -> int:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=place.channel))
    channel: WorkerChannel = Channel(reader, writer, TO_WORKER)
    try:
        await _Worker(place, channel).run()
    except (ApplianceError, OSError, msgspec.DecodeError) as error:
        _log.error("an API process cannot run", extra=fields(reason=str(error), worker=place.index))
        channel.send(Failed(str(error)))
        return 1
    finally:
        channel.close()
    return 0


class KeeperFigures:
    """Asks the keeper for the figures of all workers. See state.ApiProcesses."""

    def __init__(self, channel: WorkerChannel) -> None:
        self._channel = channel
        self._ids = itertools.count()
        self._asked: dict[int, asyncio.Future[Totals]] = {}

    async def figures(self) -> bytes:
        return (await self._totals()).text

    async def load(self) -> int:
        return (await self._totals()).load

    def answered(self, totals: Totals) -> None:
        if (asked := self._asked.get(totals.id)) is not None and not asked.done():
            asked.set_result(totals)

    async def _totals(self) -> Totals:
        """Raises ApiError 503."""
        number = next(self._ids)
        asked = self._asked[number] = asyncio.get_running_loop().create_future()
        self._channel.send(Ask(number))
        try:
            return await asyncio.wait_for(asked, _ANSWER_S)
        except TimeoutError as error:
            message = "the figures of all API processes did not come in time"
            raise ApiError(503, message, code="unavailable") from error
        finally:
            del self._asked[number]


class KeeperAdapters:
    """Asks the keeper for another set of adapters, in the engine and in all workers."""

    def __init__(self, channel: WorkerChannel) -> None:
        self._channel = channel
        self._ids = itertools.count()
        self._asked: dict[int, asyncio.Future[SetChanged]] = {}

    async def change(self, change: AdapterChange) -> None:
        """Raises AdapterSetError. A keeper that is gone ends this process, and the request with it."""
        number = next(self._ids)
        asked = self._asked[number] = asyncio.get_running_loop().create_future()
        self._channel.send(ChangeSet(number, change))
        try:
            answer = await asked
        finally:
            del self._asked[number]
        if answer.problem is not None:
            raise AdapterSetError(answer.problem, answer.reason)

    def answered(self, answer: SetChanged) -> None:
        if (asked := self._asked.get(answer.id)) is not None and not asked.done():
            asked.set_result(answer)


class _Worker:
    def __init__(self, place: Place, channel: WorkerChannel) -> None:
        self._place = place
        self._channel = channel
        self._figures = KeeperFigures(channel)
        self._adapters = KeeperAdapters(channel)
        self._is_told = asyncio.Event()  # how the engine is; connections that wait for us must not hear that it starts
        self._plan = msgspec.json.decode(place.plan.read_bytes(), type=EnginePlan)
        configure(self._plan.serving.logs.level, config_file=self._plan.serving.logs.config_file)
        route_uvicorn_logs()

    async def run(self) -> None:
        plan, place = self._plan, self._place
        tls = plan.serving.listen.tls
        certificates = Certificates(tls) if tls is not None else None
        metrics = ServiceMetrics(plan.model.served_names[0], has_engine=False)
        metrics.describe(plan)
        page = SharedPage(place.page, place.index, place.count)
        client = EngineClient(
            AdmissionLimits.of(plan.scheduler), metrics.of_engine(plan.parallel.first_replica), neighbours=page
        )
        client.introduces_vocabulary = plan.serving.structured.at_start
        engine = EngineSide(client)
        text = await asyncio.to_thread(load_text_side, plan, cache_dir())
        client.use_text(text)
        store = Store(plan.serving.store, place.store)
        try:
            state = make_state(plan, client, metrics, engine.health, text.tokenizer, store, page.account, self._figures)
            await self._serve(state, engine, certificates)
        finally:
            engine.close()
            store.close()
            page.close()

    async def _serve(self, state: ServerState, engine: EngineSide, certificates: Certificates | None) -> None:
        app = LiveApp(make_app(state))
        config = uvicorn_config(self._plan.serving, app)
        config.load()
        config.ssl = certificates.context if certificates is not None else None
        server = QuietServer(config)
        running = RunningServer(state, engine, server, app, certificates)
        state.open.change_adapters = self._adapters.change
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, running.terminate)
        obeying = asyncio.create_task(self._obey(running, engine), name="channel")
        told = asyncio.create_task(self._is_told.wait())
        await asyncio.wait({told, obeying}, return_when=asyncio.FIRST_COMPLETED)
        self._channel.send(Up())
        serving = asyncio.create_task(server.serve([adopt(self._place.listener)]))
        batches = asyncio.create_task(self._batches(running), name="batches")
        await asyncio.wait({serving, obeying}, return_when=asyncio.FIRST_COMPLETED)
        running.end_now()  # it has ended, or there is nobody who keeps us
        await serving
        for task in (obeying, told, batches):
            task.cancel()
        await asyncio.gather(obeying, told, batches, return_exceptions=True)
        await running.state.tools.close()
        if running.state.tracer is not None:
            await asyncio.to_thread(running.state.tracer.close)

    async def _batches(self, running: RunningServer) -> None:
        """Runs batches in worker 0; the other workers report when one was made."""
        if self._place.index == 0:
            await BatchWorker(lambda: running.state).run()
        wanted = running.state.open.batch_wanted  # the same for every plan
        while True:
            await wanted.wait()
            wanted.clear()
            self._channel.send(BatchWanted())

    async def _obey(self, running: RunningServer, engine: EngineSide) -> None:
        """Takes messages until the keeper is gone."""
        self._channel.send(Here())
        async for message in self._channel.messages():
            self._take(message, running, engine)
        _log.error("the keeper of the API processes is gone", extra=fields(worker=self._place.index))

    def _take(self, message: ToWorker, running: RunningServer, engine: EngineSide) -> None:
        match message:
            case EngineNow():
                engine.now(message)
                self._is_told.set()
            case Count():
                samples = samples_of(running.state.metrics.collector)
                self._channel.send(Counted(message.id, samples, running.state.open.load))
            case Totals():
                self._figures.answered(message)
            case SetChanged():
                self._adapters.answered(message)
            case UsePlan():
                self._channel.send(Done(message.id, _refusal(running, message.path)))
            case Terminate():
                running.terminate()
            case Retire():
                running.retire()
            case BatchWanted():
                running.state.open.batch_wanted.set()


def _refusal(running: RunningServer, path: str) -> str:
    """Empty when the plan at `path` holds from now on."""
    try:
        running.use_plan(msgspec.json.decode(Path(path).read_bytes(), type=EnginePlan))
    except (ApplianceError, OSError, msgspec.DecodeError) as error:
        return str(error)
    return ""
