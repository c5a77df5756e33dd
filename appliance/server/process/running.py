"""A server that runs: it takes other plans, hands over, and ends."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec
import uvicorn
from starlette.types import ASGIApp

from appliance.base.errors import ApplianceError
from appliance.base.log import configure
from appliance.plan.serving_types import ServingPlan
from appliance.plan.types import EnginePlan
from appliance.server.http.app import make_app
from appliance.server.http.certificates import Certificates, load_certificates
from appliance.server.http.protocol import Bounds, bounded_protocol
from appliance.server.process.live import LiveApp
from appliance.server.state import ServerState, with_plan
from appliance.service.adapter_sets import AdapterChange, AdapterSetError, changed_set
from appliance.service.client import AdmissionLimits
from appliance.service.control import Reload
from appliance.service.health import EngineHealth
from appliance.service.rolling import Check, RollRules
from appliance.service.slo_gate import check_gate

_LOOK_EVERY_S = 0.05  # while draining
_LINGER_S = 1.0  # after another server listens: for requests on connections that were accepted here


class EngineKeeper(Protocol):
    """Whoever starts and watches the engine, or speaks for who does."""

    def use_plan(self, plan: EnginePlan) -> None: ...

    async def change_adapters(self, plan: EnginePlan) -> None:
        """Makes the engine serve the adapters of a plan. Raises ApplianceError; then those before are served."""

    async def roll(self, plan: EnginePlan, path: Path, rules: RollRules) -> None:
        """Replaces the engines one after the other by those of a plan. Raises ApplianceError; then those before are
        there, or come back."""

    def drain(self) -> None:
        """No new requests from now on; open ones go on."""


class RunningServer:
    """`server` accepts connections for `app`, which belongs to `state`."""

    def __init__(
        self,
        state: ServerState,
        supervisor: EngineKeeper,
        server: uvicorn.Server,
        app: LiveApp,
        certificates: Certificates | None = None,
        plan_path: Path = Path(),
    ) -> None:
        """plan_path: of the plan that the engines have."""
        self.is_shared = False  # our socket, with the server that replaces us
        self.state = state  # of the newest plan
        self._supervisor = supervisor
        self._plan_path = plan_path
        self._server = server
        self._app = app
        self._certificates = certificates
        state.open.change_adapters = self.change_adapters
        self._ending: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()  # one change of the plan at a time

    async def reload(self, command: Reload) -> None:
        """`change_to` the plan of the command, and `roll` where it is for other engines. Raises OSError,
        msgspec.DecodeError as well."""
        path = Path(command.plan).resolve()
        plan = msgspec.json.decode(path.read_bytes(), type=EnginePlan)
        if plan.engine_sha256 == self.state.plan.engine_sha256:
            await self.change_to(lambda _: plan)
        else:
            await self.roll(plan, path, RollRules(command.within_s, _check_of(self.state, plan, command)))

    async def roll(self, plan: EnginePlan, path: Path, rules: RollRules) -> None:
        """Replaces the engines one after the other, and answers new requests by the plan once all are replaced. Raises
        ApplianceError when this server's engines cannot be, or one fails; then the present plan holds."""
        async with self._changing:
            old, old_path = self.state.plan, self._plan_path
            if plan.adapters_sha256 != old.adapters_sha256 or plan.model.path != old.model.path:
                raise ApplianceError("engines of another model, or with other adapters, need a new server")
            await self._supervisor.roll(plan, path, rules)
            try:
                self._use(plan)
            except BaseException:
                await self._supervisor.roll(old, old_path, RollRules())
                raise
            self._plan_path = path

    async def change_to(self, changed: Callable[[EnginePlan], EnginePlan]) -> None:
        """Answers new requests by the plan that `changed` makes of the present one. Where it has other adapters, the
        engine serves them first. Raises ApplianceError when that takes more than this engine can, or fails, and what
        `changed` raises; then the present plan holds."""
        async with self._changing:
            old = self.state.plan
            plan = changed(old)
            check_same_engine(old, plan)
            is_other = plan.adapters_sha256 != old.adapters_sha256
            if is_other:
                await self._supervisor.change_adapters(plan)
            try:
                self.use_plan(plan)
            except BaseException:
                if is_other:
                    await self._supervisor.change_adapters(old)
                raise

    async def change_adapters(self, change: AdapterChange) -> None:
        """Changes the set of adapters as a request asks. Raises AdapterSetError."""
        try:
            await self.change_to(lambda plan: changed_set(plan, change))
        except AdapterSetError:
            raise
        except ApplianceError as error:
            raise AdapterSetError("refused", str(error), hint=error.hint) from error

    def use_plan(self, plan: EnginePlan) -> None:
        """Answers new requests by this plan, whose adapters the engine serves already. Raises ApplianceError when it
        needs more than a live change."""
        check_same_engine(self.state.plan, plan)
        self._use(plan)

    def _use(self, plan: EnginePlan) -> None:
        """Does what use_plan does, for engines that have the plan already."""
        old = self.state
        tls = plan.serving.listen.tls
        loaded = load_certificates(tls) if tls is not None and self._certificates is not None else None
        policy = old.client.policy
        try:
            new = with_plan(old, plan)
            app = make_app(new)
            old.keys.use(plan.serving.auth)
        except BaseException:
            old.client.policy = policy  # with_plan has set another
            raise
        old.tools.use(plan.serving.tool_servers)
        self.state = new
        new.open.plan = plan
        self._supervisor.use_plan(plan)
        old.client.use_limits(AdmissionLimits.of(plan.scheduler))
        if self._certificates is not None and loaded is not None:
            self._certificates.use(loaded)
        configure(plan.serving.logs.level, config_file=plan.serving.logs.config_file)
        new.metrics.describe(plan)
        self._app.use(app)
        if old.tracer is not None and new.tracer is not old.tracer:
            old.tracer.retire()
        _bound(self._server.config, plan.serving)

    def terminate(self) -> None:
        """Finishes what is open within the planned time and takes nothing new; a second call ends at once."""
        if self._ending is not None and self.state.open.is_draining:
            self._ending.cancel()
            self.end_now()
            return
        self.state.open.is_draining = True
        self._supervisor.drain()
        self._begin_to_end(linger_s=0.0)

    def retire(self) -> None:
        """Another server listens on our socket. Requests on connections that are ours already are still taken."""
        self.is_shared = True
        self._app.is_retiring = True
        for server in self._server.servers:
            server.close()
        if self.state.health.is_paused:
            self._supervisor.drain()  # whoever ends the pause reaches the other server
        self._begin_to_end(_LINGER_S)

    def _begin_to_end(self, linger_s: float) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self._ending = asyncio.create_task(self._finish(linger_s), name="drain")

    async def _finish(self, linger_s: float) -> None:
        deadline = time.monotonic() + self.state.plan.serving.shutdown_timeout_s
        await asyncio.sleep(linger_s)
        while self._has_open_requests() and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_EVERY_S)
        self.end_now()

    def _has_open_requests(self) -> bool:
        return bool(self.state.client.num_open_requests or self.state.open.load)

    def end_now(self) -> None:
        """Fails what is open, and ends."""
        self.state.client.fail_all("the server is shutting down")
        self._server.should_exit = True


def _check_of(state: ServerState, plan: EnginePlan, command: Reload) -> Check | None:
    """Returns what tries each new engine, where the command and the plan ask for it."""
    gate = plan.serving.gate if command.is_gated else None
    if gate is None:
        return None

    async def check(endpoint: str, health: EngineHealth) -> None:
        await check_gate(plan, gate, endpoint, state.client.text, health)

    return check


def check_same_engine(old: EnginePlan, new: EnginePlan) -> None:
    """Raises ApplianceError for a plan that the running engine cannot follow."""
    if new.engine_sha256 != old.engine_sha256:
        raise ApplianceError("the plan is for another engine, which needs a new server")


class QuietServer(uvicorn.Server):
    """uvicorn without its own signal handlers: ours drain first."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def route_uvicorn_logs() -> None:
    """uvicorn's warnings and errors look like ours."""
    theirs = logging.getLogger("uvicorn")
    theirs.handlers[:] = logging.getLogger("appliance").handlers
    theirs.propagate = False
    theirs.setLevel(logging.WARNING)


def uvicorn_config(serving: ServingPlan, app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=bounded_protocol(Bounds.of(serving.limits)),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        root_path=serving.http.root_path,
        timeout_keep_alive=max(1, round(serving.http.keep_alive_s)),
        timeout_graceful_shutdown=2,
    )


def _bound(config: uvicorn.Config, serving: ServingPlan) -> None:
    """Sets the bounds of connections from now on: uvicorn reads its config at each."""
    config.http_protocol_class = bounded_protocol(Bounds.of(serving.limits))
    config.root_path = serving.http.root_path
    config.timeout_keep_alive = max(1, round(serving.http.keep_alive_s))
