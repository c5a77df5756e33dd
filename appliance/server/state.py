"""What the handlers of one server share."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from appliance.plan.types import EnginePlan
from appliance.server.http.callers import CALLER, Account
from appliance.server.http.errors import ApiError
from appliance.server.http.keys import KeyRing
from appliance.server.http.request_log import request_policy
from appliance.server.http.tracing import Tracer, tracer_for
from appliance.server.requests.prompts import PromptMaker
from appliance.server.requests.sampling import SamplingRules
from appliance.service.client import EngineClient
from appliance.service.deep_check import DeepCheck
from appliance.service.health import Health
from appliance.service.metrics import ServiceMetrics
from appliance.store.store import Store
from appliance.text.tokenizer import Tokenizer

_SHOWN_NAME = 100

Endpoint = Callable[[Request], Awaitable[Response]]  # errors are responses


class ApiProcesses(Protocol):
    """All API processes of this server. Each raises ApiError 503 when they do not answer."""

    async def figures(self) -> bytes:
        """In the Prometheus text format."""

    async def load(self) -> int:
        """Generation requests that are open."""


@dataclass(slots=True)
class ServerState:
    """health: the supervisor's, which keeps changing. load: generation requests that are open."""

    plan: EnginePlan
    client: EngineClient
    tokenizer: Tokenizer
    prompts: PromptMaker
    sampling: SamplingRules
    metrics: ServiceMetrics
    health: Health
    keys: KeyRing
    store: Store
    deep: DeepCheck
    tracer: Tracer | None = None  # where traces are planned
    created: int = field(default_factory=lambda: int(time.time()))
    load: int = 0
    document: bytes = b"{}"  # OpenAPI, of the routes that are served
    batch_endpoints: dict[str, Endpoint] = field(default_factory=dict)  # handlers that answer lines, by path
    batch_wanted: asyncio.Event = field(default_factory=asyncio.Event)  # a batch was made
    background: set[asyncio.Task[None]] = field(default_factory=set)  # what runs without a request that waits for it
    is_draining: bool = False
    processes: ApiProcesses | None = None  # where this is one of several processes
    cpu_at_profile_start: float = 0.0  # seconds of this process

    @property
    def model_name(self) -> str:
        return self.plan.model.served_names[0]

    def check_model(self, name: str | None) -> None:
        """Raises ApiError 404 for a model that is not served here, 403 for one that the caller may not use."""
        if name is not None and name not in self.plan.model.served_names:
            served = ", ".join(self.plan.model.served_names)
            message = f"the model {name[:_SHOWN_NAME]!r} does not exist; served here: {served}"
            raise ApiError(404, message, param="model", code="model_not_found")
        if (caller := CALLER.get()) is not None:
            caller.check_model(name or self.model_name)


def make_state(
    plan: EnginePlan,
    client: EngineClient,
    metrics: ServiceMetrics,
    health: Health,
    tokenizer: Tokenizer,
    store: Store | None = None,
    tracer: Tracer | None = None,
    accounts: Callable[[str], Account | None] = lambda name: None,
) -> ServerState:
    """`store`: by default one that goes with the process. `tracer`: a former plan's, used on where it fits this one.

    `accounts`: see KeyRing. From now on the client follows this plan's policy.

    Raises ChatTemplateError for a chat template with a syntax error, ApplianceError for a bad file of keys or traces
    without OpenTelemetry.
    """
    prompts, sampling = PromptMaker(plan, tokenizer), SamplingRules(plan, tokenizer)
    keys = KeyRing(plan.serving.auth, metrics, accounts)
    tracer = tracer_for(plan.serving.traces, plan.model.served_names[0], tracer)
    client.policy = request_policy(plan.serving, tokenizer, client, tracer)
    kept = store or Store(plan.serving.store)
    deep = DeepCheck(client, health, metrics)
    return ServerState(plan, client, tokenizer, prompts, sampling, metrics, health, keys, kept, deep, tracer)
