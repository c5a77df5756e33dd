"""Keeps several API processes and their engine: starts, notifies, counts and ends them. It answers no HTTP itself."""

import asyncio
import signal
import socket
import tempfile
import time
from collections.abc import Coroutine, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import uvloop
from prometheus_client import CollectorRegistry, generate_latest

from appliance.base.environ import cache_dir
from appliance.base.errors import ApplianceError
from appliance.base.log import configure, fields, logger
from appliance.engine.messages import EngineEvent, EngineStats
from appliance.plan.types import EnginePlan
from appliance.server.http.certificates import load_certificates
from appliance.server.http.listen import adopt, bind, release, url_of
from appliance.server.process.live import Control
from appliance.server.process.running import check_same_engine
from appliance.server.workers.engine_side import endpoint_for
from appliance.server.workers.figures import Counts, add, summed
from appliance.server.workers.member import Home, Member, describe_end
from appliance.server.workers.messages import (
    Ask,
    BatchWanted,
    ChangeSet,
    EngineNow,
    FromWorker,
    Here,
    Retire,
    SetChanged,
    Terminate,
    Totals,
    Up,
)
from appliance.server.workers.page import SharedPage
from appliance.service.adapter_sets import AdapterSetError, Problem, changed_set
from appliance.service.client import AdmissionLimits, EngineClient
from appliance.service.control import Reload
from appliance.service.engine_spawn import SpawnedEngine, sockets_beside
from appliance.service.errors import RequestFailedError
from appliance.service.exporting import Exporters
from appliance.service.health import EngineState, Health
from appliance.service.metrics import ServiceMetrics
from appliance.service.slo_gate import check_gate
from appliance.service.status_file import StatusFile, tell, tell_given_up
from appliance.service.supervisor import EnginePaths, Supervisor
from appliance.service.text_side import load_text_side

_log = logger("server")
_COUNT_EVERY_S = 5.0  # what a process that is killed takes with it at most
_COUNT_WITHIN_S = 2.0
_USE_WITHIN_S = 20.0
_END_MARGIN_S = 5.0  # above the planned time, then what is left is killed


def run_keeper(
    plan_path: Path,
    status: StatusFile,
    engine_command: Sequence[str] = (),
    store_folder: Path | None = None,
    engine: SpawnedEngine | None = None,
    listener: int | None = None,
    is_gated: bool = False,
) -> int:
    """Does what run.run_server does, with as many processes as the plan has."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # means something once we serve
    try:
        plan = msgspec.json.decode(plan_path.read_bytes(), type=EnginePlan)
        configure(plan.serving.logs.level, config_file=plan.serving.logs.config_file)
        with ExitStack() as stack:
            folder = store_folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="appliance-store-")))
            sockets = stack.enter_context(sockets_beside(engine))
            runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
            keeper = Keeper(plan, EnginePaths(plan_path.resolve(), sockets), status, folder, engine_command, engine)
            runner.run(keeper.run(listener, is_gated=is_gated))
    except (ApplianceError, OSError, msgspec.DecodeError) as error:
        _log.error("the server cannot run", extra=fields(reason=str(error)))
        status.write("failed", reason=str(error))
        return 1
    else:
        status.write("stopped")
        return 0
    finally:
        status.close()


class Keeper:
    """The parts of one server and their order of start and end."""

    def __init__(
        self,
        plan: EnginePlan,
        paths: EnginePaths,
        status: StatusFile,
        store: Path,
        engine_command: Sequence[str],
        engine: SpawnedEngine | None,
    ) -> None:
        self._plan = plan
        self._paths = paths
        self._plan_path = paths.plan
        self._status = status
        self._store = store
        self._started = time.monotonic()
        self._url = ""
        self._was_ready = False
        self._is_shared = False  # our socket, with the server that replaces us
        self._ending: float | None = None  # when what is left is killed
        self._metrics = ServiceMetrics(plan.model.served_names[0])
        self._figures = self._metrics.of_engine(plan.parallel.first_replica)
        self._client = EngineClient(AdmissionLimits(plan.scheduler.max_num_seqs, None), self._figures)
        self._supervisor = Supervisor(
            plan, paths, self._client, metrics=self._figures, listener=self._on_event,
            command=engine_command, first=engine, replica=plan.parallel.first_replica,
        )  # fmt: skip
        count = plan.serving.api_servers
        self._page = SharedPage.make(paths.sockets / "page", count)
        self._members = [Member(index, self._home, self._heard, self._gone) for index in range(count)]
        self._exporters = Exporters(plan.serving.exporters)
        self._departed: Counts = {}  # counts of processes that have ended
        self._listener: socket.socket
        self._tasks: set[asyncio.Task[None]] = set()
        self._changing = asyncio.Lock()  # one change of the plan at a time

    async def run(self, inherited: int | None, *, is_gated: bool) -> None:
        listen = self._plan.serving.listen
        if listen.tls is not None:
            load_certificates(listen.tls)  # what is wrong with them is said once, here
        self._listener = adopt(inherited) if inherited is not None else bind(listen)
        self._url = url_of(self._listener, listen)
        self._status.write("listening", url=self._url)
        self._metrics.describe(self._plan)
        self._supervisor.start()
        try:
            if inherited is not None or is_gated:
                _require_ready(await self._supervisor.settled())
            if is_gated:
                await self._pass_gate()
            await self._keep()
        finally:
            for member in self._members:
                member.end()
                member.kill()
            release(self._listener, listen, is_shared=self._is_shared)
            await self._supervisor.stop()
            self._page.close()

    def terminate(self) -> None:
        """Workers finish what is open within the planned time; a second time, they end at once."""
        self._supervisor.drain()
        self._begin_to_end(Terminate())

    def retire(self) -> None:
        self._is_shared = True
        if self._supervisor.health.is_paused:
            self._supervisor.drain()  # whoever ends the pause reaches the other server
        self._begin_to_end(Retire())

    async def reload(self, command: Reload) -> None:
        """All take the plan, or none does: those that had taken it go back. Where it has other adapters, the engine
        serves them first."""
        async with self._changing:
            path = Path(command.plan)
            plan = msgspec.json.decode(path.read_bytes(), type=EnginePlan)
            await self._change_to(plan, path.resolve())

    async def _change_to(self, plan: EnginePlan, path: Path | None = None) -> None:
        """path: of the plan; None: where the supervisor keeps it."""
        check_same_engine(self._plan, plan)
        is_other = plan.adapters_sha256 != self._plan.adapters_sha256
        if is_other:
            await self._supervisor.change_adapters(plan)
        if refusal := await self._tell_plan(path or self._supervisor.plan_path):
            if is_other:
                await self._supervisor.change_adapters(self._plan)
            raise ApplianceError(refusal)
        self._plan = plan
        self._supervisor.use_plan(plan)
        self._metrics.describe(plan)
        configure(plan.serving.logs.level, config_file=plan.serving.logs.config_file)

    async def _tell_plan(self, path: Path) -> str:
        """Tells all workers to take a plan. Returns why one refuses it, and then none has it; else an empty text."""
        before = self._plan_path
        self._plan_path = path  # of workers that start from now on
        answers = await asyncio.gather(*[member.use_plan(path, _USE_WITHIN_S) for member in self._members])
        refusals = [reason for reason in answers if reason]
        if refusals:
            self._plan_path = before
            await asyncio.gather(*[member.use_plan(before, _USE_WITHIN_S) for member in self._members])
        return refusals[0] if refusals else ""

    async def _pass_gate(self) -> None:
        gate, health = self._plan.serving.gate, self._supervisor.health
        if gate is not None:
            self._status.write("phase", name="gate", seconds=0.0, done=0, total=0, ended=False)
            text = await asyncio.to_thread(load_text_side, self._plan, cache_dir())
            await check_gate(self._plan, gate, self._supervisor.endpoint, text, health)

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.terminate)
        if self._status.folder is not None:
            control = Control(self._status.folder, self._status, self, self._listener)
            loop.add_signal_handler(signal.SIGHUP, control.wake)
        running = [asyncio.create_task(member.keep_running()) for member in self._members]
        watch = asyncio.create_task(self._watch())
        exports = asyncio.create_task(self._exporters.run(self._summed))
        settled = asyncio.create_task(self._supervisor.settled())
        try:
            await asyncio.wait({*running, settled}, return_when=asyncio.FIRST_COMPLETED)
            if settled.done() and self._ending is None:
                _require_ready(settled.result())
            while any(not task.done() for task in running):
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                self._check_starts()
                running = [task for task in running if not task.done()]
        finally:
            for member in self._members:
                member.end()
            for task in (*running, watch, exports, settled):
                task.cancel()
            await asyncio.gather(*running, watch, exports, settled, return_exceptions=True)

    def _check_starts(self) -> None:
        """Raises ApplianceError for a worker that ended before it was ever up."""
        if self._ending is not None:
            return
        failed = next((member for member in self._members if not member.has_been_up and member.pid is None), None)
        if failed is not None:
            raise ApplianceError(describe_end(failed))

    async def _watch(self) -> None:
        """Counts now and then, and kills what did not end in time."""
        while True:
            await asyncio.sleep(_COUNT_EVERY_S if self._ending is None else 0.1)
            if self._ending is None:
                await self._count()
            elif time.monotonic() > self._ending:
                for member in self._members:
                    member.kill()

    async def _count(self) -> None:
        """Workers and engine bring their figures up to date."""
        await asyncio.gather(*[member.count(_COUNT_WITHIN_S) for member in self._members])
        with suppress(TimeoutError, RequestFailedError):  # the figures before stand while the engine is away
            stats = await asyncio.wait_for(self._client.call("stats"), _COUNT_WITHIN_S)
            self._figures.note(msgspec.msgpack.decode(stats, type=EngineStats))

    async def _tell_totals(self, member: Member, number: int) -> None:
        text = generate_latest(await self._summed())
        member.send(Totals(number, text, sum(each.load for each in self._members)))

    async def _summed(self) -> CollectorRegistry:
        """Returns the figures of all processes as they are now."""
        await self._count()
        counts = dict(self._departed)
        for each in self._members:
            add(counts, each.counted)
        return summed(self._metrics.collector, counts)

    def _home(self) -> Home:
        return Home(self._plan_path, self._store, self._paths.sockets / "page", self._listener, len(self._members))

    def _heard(self, member: Member, message: FromWorker) -> None:
        match message:
            case Here():
                member.send(self._engine_now())
            case Up():
                self._announce()
            case Ask():
                self._begin_task(self._tell_totals(member, message.id))
            case ChangeSet():
                self._begin_task(self._change_set(member, message))
            case BatchWanted():
                self._members[0].send(message)

    def _begin_task(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _change_set(self, member: Member, message: ChangeSet) -> None:
        """Changes the set of adapters of engine and workers, and tells how that went."""
        problem: Problem | None = None
        reason = ""
        try:
            async with self._changing:
                await self._change_to(changed_set(self._plan, message.change))
        except ApplianceError as error:
            problem = error.problem if isinstance(error, AdapterSetError) else "refused"
            reason = f"{error}; hint: {error.hint}" if error.hint else str(error)
        member.send(SetChanged(message.id, problem, reason))

    def _gone(self, member: Member) -> None:
        self._page.clear(member.index)
        add(self._departed, member.counted)
        member.counted, member.load = [], 0

    def _begin_to_end(self, message: Terminate | Retire) -> None:
        self._ending = time.monotonic() + self._plan.serving.shutdown_timeout_s + _END_MARGIN_S
        for member in self._members:
            member.send(message)
            member.end()

    def _engine_now(self) -> EngineNow:
        health = self._supervisor.health
        return EngineNow(
            state=health.state,
            reason=health.reason,
            num_restarts=health.num_restarts,
            phases=list(health.phases.values()),
            endpoint=endpoint_for(health, self._supervisor.endpoint),
        )

    def _on_event(self, event: EngineEvent | Health) -> None:
        tell(self._status, event)
        if isinstance(event, Health):
            tell_given_up(self._status, event)
        for member in self._members:
            member.send(self._engine_now())
        self._announce()

    def _announce(self) -> None:
        """Says once that all is ready: the engine, and every worker."""
        is_ready = self._supervisor.health.is_ready and all(member.is_up for member in self._members)
        if is_ready and not self._was_ready:
            self._was_ready = True
            self._status.write("ready", url=self._url, seconds=round(time.monotonic() - self._started, 3))


def _require_ready(settled: Health) -> None:
    if settled.state is EngineState.FAILED:
        raise ApplianceError(f"the engine did not start: {settled.reason}")
