"""The state that the handlers of one server share."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from appliance.plan.serving_types import AdapterRulesPlan
from appliance.plan.types import EnginePlan
from appliance.requests.adapters import ChangeAdapters
from appliance.requests.errors import ApiError
from appliance.requests.prompts import PromptMaker
from appliance.requests.sampling import SamplingRules
from appliance.server.adapters.resolver import AdapterResolver
from appliance.server.http.callers import CALLER, Account
from appliance.server.http.keys import KeyRing
from appliance.server.http.request_log import request_policy
from appliance.server.http.tracing import Tracer, tracer_for
from appliance.server.mcp.servers import ToolServers
from appliance.service.adapter_sets import AdapterChange, AdapterSetError
from appliance.service.deep_check import DeepCheck
from appliance.service.health import EngineHealth
from appliance.service.metrics import ServiceMetrics
from appliance.service.service_client import ServiceClient
from appliance.store.store import Store
from appliance.text.tokenizer import Tokenizer

_SHOWN_NAME = 100


class ApiProcesses(Protocol):
    """All API processes of this server. Each raises ApiError 503 when they do not answer."""

    async def figures(self) -> bytes:
        """Returns the metrics in the Prometheus text format."""

    async def load(self) -> int:
        """Returns the number of open generation requests."""


async def _no_changes(change: AdapterChange) -> None:
    """Refuses every change, of a state that nobody runs."""
    raise AdapterSetError("refused", "the set of adapters cannot be changed now")


@dataclass(slots=True)
class OpenWork:
    """Open work of this process. It changes while requests are answered, and outlives a plan."""

    load: int = 0  # generation requests
    background: set[asyncio.Task[None]] = field(default_factory=set)  # responses that no request waits for
    batch_wanted: asyncio.Event = field(default_factory=asyncio.Event)  # a batch was made
    is_draining: bool = False
    cpu_at_profile_start: float = 0.0  # seconds of this process
    change_adapters: ChangeAdapters = _no_changes  # of all processes, set by whoever runs them
    plan: EnginePlan | None = None  # the newest; None: that of the only state


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """One plan, and the parts of this process that answer requests by it. Only `open` changes."""

    plan: EnginePlan
    prompts: PromptMaker
    sampling: SamplingRules
    tracer: Tracer | None  # None: no traces are planned
    client: ServiceClient
    tokenizer: Tokenizer
    metrics: ServiceMetrics
    health: EngineHealth  # the supervisor's, which keeps changing
    keys: KeyRing
    store: Store
    deep: DeepCheck
    processes: ApiProcesses | None = None  # None: this is the only process that answers
    created: int = field(default_factory=lambda: int(time.time()))
    tools: ToolServers = field(default_factory=ToolServers)  # outlive a plan, as `keys` does
    resolver: AdapterResolver = field(default_factory=lambda: AdapterResolver(AdapterRulesPlan()))
    document: bytes = b"{}"  # OpenAPI, of the routes that are served
    open: OpenWork = field(default_factory=OpenWork)

    @property
    def model_name(self) -> str:
        return self.plan.model.served_names[0]

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which clients may ask: those of the model, then the adapters'."""
        adapters = () if self.plan.adapters is None else self.plan.adapters.served
        return *self.plan.model.served_names, *(each.name for each in adapters)

    def adapter_of(self, name: str | None) -> str | None:
        """Returns the adapter that a request's `model` names; None for the model alone."""
        return None if name is None or name in self.plan.model.served_names else name

    async def find_model(self, name: str | None) -> None:
        """Raises what `check_model` raises. An adapter that is not served is looked for where the plan says so."""
        if name is not None and self.resolver.rules.resolves:
            if name in self.names:
                self.resolver.note_use(name)
            else:
                if (caller := CALLER.get()) is not None:
                    caller.check_model(name)
                if await self.resolver.load(lambda: self.open.plan or self.plan, self.open.change_adapters, name):
                    return
        self.check_model(name)

    def check_model(self, name: str | None) -> None:
        """Raises ApiError 404 for a model that is not served here, 403 for one that the caller may not use."""
        if name is not None and name not in self.names:
            served = ", ".join(self.names)
            message = f"the model {name[:_SHOWN_NAME]!r} does not exist; served here: {served}"
            raise ApiError(404, message, param="model", code="model_not_found")
        if (caller := CALLER.get()) is not None:
            caller.check_model(name or self.model_name)


def make_state(
    plan: EnginePlan,
    client: ServiceClient,
    metrics: ServiceMetrics,
    health: EngineHealth,
    tokenizer: Tokenizer,
    store: Store | None = None,
    accounts: Callable[[str], Account | None] = lambda name: None,
    processes: ApiProcesses | None = None,
) -> ServerState:
    """Returns the state of a server that begins. The client follows this plan's policy from then on.

    `store`: by default one that goes with the process. `accounts`: see KeyRing.

    Raises ChatTemplateError for a chat template with a syntax error, ApplianceError for a bad file of keys or traces
    without OpenTelemetry.
    """
    prompts, sampling = PromptMaker(plan, tokenizer), SamplingRules(plan, tokenizer)
    keys = KeyRing(plan.serving.auth, metrics, accounts)
    tracer = tracer_for(plan.serving.traces, plan.model.served_names[0])
    client.policy = request_policy(plan.serving, tokenizer, client, tracer)
    return ServerState(
        plan=plan,
        prompts=prompts,
        sampling=sampling,
        tracer=tracer,
        client=client,
        tokenizer=tokenizer,
        metrics=metrics,
        health=health,
        keys=keys,
        store=store or Store(plan.serving.store),
        deep=DeepCheck(client, health, metrics),
        processes=processes,
        tools=ToolServers(plan.serving.tool_servers),
        resolver=AdapterResolver(plan.serving.adapters),
    )


def with_plan(state: ServerState, plan: EnginePlan) -> ServerState:
    """Returns the state of the same process under another plan; a tracer is used on where it fits that plan.

    The client follows the new plan's policy from then on. The keys are still those of the plan before.

    Raises what make_state raises.
    """
    prompts, sampling = PromptMaker(plan, state.tokenizer), SamplingRules(plan, state.tokenizer)
    KeyRing(plan.serving.auth, state.metrics)  # a bad file of keys is refused before anything changes
    tracer = tracer_for(plan.serving.traces, plan.model.served_names[0], state.tracer)
    state.client.policy = request_policy(plan.serving, state.tokenizer, state.client, tracer)
    rules = plan.serving.adapters
    resolver = state.resolver if rules == state.resolver.rules else AdapterResolver(rules)
    return replace(state, plan=plan, prompts=prompts, sampling=sampling, tracer=tracer, resolver=resolver)
