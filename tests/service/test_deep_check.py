"""The deep check: busy is never stuck, and however many ask, one token a second is all it costs."""

import asyncio
from collections.abc import Callable

from appliance.engine.messages import (
    AbortRequest,
    EngineMessage,
    ErrorKind,
    GenerateRequest,
    OutputBatch,
    SequenceOutput,
)
from appliance.service.client import AdmissionLimits, EngineClient
from appliance.service.deep_check import KEPT_S, DeepCheck
from appliance.service.health import EngineState, Health
from appliance.service.metrics import ServiceMetrics


class Engine:
    """A link to an engine that answers as told; `answer` None never does."""

    def __init__(self, client: EngineClient, answer: SequenceOutput | None) -> None:
        self.sent: list[EngineMessage] = []
        self.heard: Callable[[], None] = lambda: None
        self._client = client
        self._answer = answer

    def send(self, message: EngineMessage) -> None:
        self.sent.append(message)
        self.heard()
        if isinstance(message, GenerateRequest) and self._answer is not None:
            fields = {name: getattr(self._answer, name) for name in ("token_ids", "error", "error_kind")}
            event = OutputBatch([SequenceOutput(request_id=message.request_id, **fields)])
            asyncio.get_running_loop().call_soon(self._client.on_event, event)

    def close(self) -> None: ...


class Checked:
    def __init__(self, answer: SequenceOutput | None) -> None:
        self.now = 100.0
        self.metrics = ServiceMetrics("m")
        self.health = Health(state=EngineState.READY, reason="")
        client = EngineClient(AdmissionLimits(1, 0), self.metrics.of_engine())
        self.engine = Engine(client, answer)
        client.attach(self.engine)
        self.check = DeepCheck(client, self.health, self.metrics, patience_s=0.0, clock=lambda: self.now)
        self.patient = DeepCheck(client, self.health, self.metrics, clock=lambda: self.now)


TOKEN = SequenceOutput(request_id="", token_ids=[7])


async def test_one_token_answers_everybody_for_a_second() -> None:
    checked = Checked(TOKEN)
    found = await asyncio.gather(*(checked.patient.result() for _ in range(10)))
    assert {each.state for each in found} == {"ok"}
    await checked.patient.result()
    assert len(checked.engine.sent) == 1
    checked.now += KEPT_S + 0.1
    await checked.patient.result()
    assert len(checked.engine.sent) == 2
    text = checked.metrics.render().decode()
    assert 'appliance_deep_checks_total{model_name="m",result="ok"} 2.0' in text
    assert 'vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 0.0' in text


async def test_no_token_and_no_step_is_stuck_and_the_token_is_given_up() -> None:
    checked = Checked(None)
    found = await checked.check.result()
    assert (found.state, "does nothing" in found.reason) == ("stuck", True)
    request, abort = checked.engine.sent
    assert isinstance(request, GenerateRequest)
    assert abort == AbortRequest([request.request_id])


async def test_an_engine_in_a_step_or_in_the_next_one_is_busy() -> None:
    checked = Checked(None)
    checked.health.step_seconds = 20.0
    assert (await checked.check.result()).state == "busy"
    checked = Checked(None)
    checked.engine.heard = lambda: setattr(checked.health, "step", 8)
    assert (await checked.check.result()).state == "busy"


async def test_a_full_queue_is_busy_and_a_failure_is_not() -> None:
    full = SequenceOutput(request_id="", error="9 wait", error_kind=ErrorKind.OVERLOADED)
    assert (await Checked(full).patient.result()).state == "busy"
    broken = SequenceOutput(request_id="", error="logits are NaN", error_kind=ErrorKind.INTERNAL)
    found = await Checked(broken).patient.result()
    assert (found.state, found.reason) == ("stuck", "logits are NaN")


async def test_an_engine_that_went_away_is_not_busy() -> None:
    checked = Checked(None)
    checked.health.step_seconds = 9.0
    waiting = asyncio.create_task(checked.patient.result())
    while not checked.engine.sent:
        await asyncio.sleep(0)
    checked.health.state = EngineState.RESTARTING
    checked.patient._client.fail_all("the engine hangs in step 4")
    assert (await waiting).reason == "the engine hangs in step 4"
