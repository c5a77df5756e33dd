"""The client over an engine in this process: text, stop strings, aborts, failures, counts."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from appliance.engine.messages import (
    AbortRequest,
    Constraint,
    EngineMessage,
    ErrorKind,
    GenerateRequest,
    OutputBatch,
    SamplingParams,
    SequenceOutput,
)
from appliance.engine.scripted import Script
from appliance.plan.serving_types import StructuredPlan
from appliance.plan.types import EnginePlan
from appliance.service.client import AdmissionLimits, EngineClient
from appliance.service.errors import RequestFailedError
from appliance.service.in_process import InProcessEngine
from appliance.service.intake import OPEN, STARTING
from appliance.service.metrics import ServiceMetrics
from appliance.service.requests import TextOptions, TextRequest
from appliance.service.streams import OutputStream
from appliance.service.supervisor import EnginePaths, Supervisor
from appliance.service.text_side import TextSide, load_text_side
from appliance.text.loading import load_other
from tests.server.harness import continues, encode, write_plan
from tests.text.own_tokenizers import END

SCRIPT = Script(replies=[continues("Say: ", "hello world"), continues("Stop: ", "one STOP two three four five")])
WIDE = AdmissionLimits(max_num_seqs=8, max_waiting=None)


def plan_in(folder: Path, script: Script = SCRIPT) -> EnginePlan:
    return msgspec.json.decode(write_plan(folder, script).read_bytes(), type=EnginePlan)


@pytest_asyncio.fixture()
async def engine(tmp_path: Path) -> AsyncIterator[InProcessEngine]:
    plan = plan_in(tmp_path)
    running = InProcessEngine(plan, load_text_side(plan, None))
    yield running
    running.close()


def request(prompt: str, text: TextOptions | None = None, **sampling: Any) -> TextRequest:
    params = SamplingParams(**{"max_tokens": 50, "temperature": 0.0, **sampling})
    return TextRequest(request_id="r", prompt_token_ids=encode(prompt), sampling=params, text=text or TextOptions())


class Link:
    """To an engine that never answers."""

    def __init__(self) -> None:
        self.sent: list[EngineMessage] = []

    def send(self, message: EngineMessage) -> None:
        self.sent.append(message)

    def close(self) -> None: ...


def connected(folder: Path, limits: AdmissionLimits = WIDE) -> tuple[EngineClient, Link]:
    client, link = EngineClient(limits), Link()
    client.use_text(load_text_side(plan_in(folder), None))
    client.attach(link)
    client.intake = OPEN
    return client, link


async def texts(stream: OutputStream, count: int = 1) -> list[str]:
    found = [""] * count
    async for outputs in stream:
        for output in outputs:
            found[output.index] += output.text
    return found


async def test_text_comes_out(engine: InProcessEngine) -> None:
    assert await texts(engine.client.generate(request("Say: "))) == ["hello world"]
    assert engine.client.num_open_requests == engine.client.num_open_sequences == 0


async def test_requests_of_one_stream_are_numbered(engine: InProcessEngine) -> None:
    stream = engine.client.generate(request("Say: ", n=2), request("Stop: ", n=2))
    assert await texts(stream, 4) == ["hello world"] * 2 + ["one STOP two three four five"] * 2


async def test_stop_string_ends_the_sequence_in_the_engine(engine: InProcessEngine) -> None:
    stream = engine.client.generate(request("Stop: ", TextOptions(stop=("STOP",)), max_tokens=400))
    ends = [output async for outputs in stream for output in outputs if output.finish_reason]
    assert (ends[-1].finish_reason, ends[-1].stop_reason) == ("stop", "STOP")
    await idle(engine.client)


async def test_stop_string_ends_its_sequence_alone(tmp_path: Path) -> None:
    client, link = connected(tmp_path)
    stream = client.generate(request("Stop: ", TextOptions(stop=("STOP",)), n=2))
    (asked,) = link.sent
    assert isinstance(asked, GenerateRequest)
    said = [SequenceOutput(request_id=asked.request_id, index=1, token_ids=encode("a STOP b"))]
    client.on_event(OutputBatch(said))
    assert link.sent[1:] == [AbortRequest([asked.request_id], index=1)]
    assert client.num_open_requests == 1
    stream.close()


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_the_engine_hears_who_reads_along(tmp_path: Path, is_streamed: bool) -> None:
    client, link = connected(tmp_path)
    client.generate(request("Say: "), is_streamed=is_streamed).close()
    asked = link.sent[0]
    assert isinstance(asked, GenerateRequest)
    assert asked.is_streamed is is_streamed


async def test_closing_a_stream_aborts(engine: InProcessEngine) -> None:
    with engine.client.generate(request("x", max_tokens=400, n=3)) as stream:
        await anext(stream)
        assert engine.client.num_open_sequences == 3
    assert engine.client.num_open_sequences == 0
    assert [output async for output in stream] == []
    await idle(engine.client)


async def test_a_tokenizer_that_cannot_decode_ends_its_request_alone(tmp_path: Path) -> None:
    client, link = connected(tmp_path)
    client.use_text(TextSide(load_other(tmp_path, "custom", "tests.text.own_tokenizers.Mute"), (END,)))
    bad, good = client.generate(request("a")), client.generate(request("a"))
    mute, heard = (asked.request_id for asked in link.sent if isinstance(asked, GenerateRequest))
    said = [SequenceOutput(request_id=mute, index=0, token_ids=[ord("x")])]
    said += [SequenceOutput(request_id=heard, index=0, token_ids=[ord(each)]) for each in "ok"]
    client.on_event(OutputBatch(said))
    with pytest.raises(RequestFailedError, match="could not be made text") as failure:
        await texts(bad)
    assert failure.value.kind is ErrorKind.INTERNAL
    assert link.sent[2:] == [AbortRequest([mute])]
    assert client.num_open_requests == 1
    assert "".join(output.text for output in await anext(good)) == "ok"
    good.close()


async def test_a_failing_request_ends_its_stream_alone(engine: InProcessEngine) -> None:
    good = engine.client.generate(request("Say: "))
    bad = engine.client.generate(request("Say: "), request("Say: ", logit_bias={10**8: 1.0}))
    with pytest.raises(RequestFailedError) as failure:
        await texts(bad, 2)
    assert (failure.value.kind, failure.value.field) == (ErrorKind.INVALID, "logit_bias")
    assert await texts(good) == ["hello world"]
    assert engine.client.num_open_requests == 0


async def test_closing_the_engine_fails_what_is_open(engine: InProcessEngine) -> None:
    stream = engine.client.generate(request("x", max_tokens=400))
    await anext(stream)
    engine.close()
    with pytest.raises(RequestFailedError, match="closed"):
        await texts(stream)
    with pytest.raises(RequestFailedError) as refused:
        engine.client.generate(request("x"))
    assert refused.value.kind is ErrorKind.UNAVAILABLE


async def test_crash_reaches_every_request(tmp_path: Path) -> None:
    plan = plan_in(tmp_path, Script(crash_at_step=3))
    engine = InProcessEngine(plan, load_text_side(plan, None))
    streams = [engine.client.generate(request("x")) for _ in range(3)]
    results = await asyncio.gather(*[texts(stream) for stream in streams], return_exceptions=True)
    assert all(isinstance(result, RequestFailedError) for result in results)
    assert "crash" in engine.client.intake.reason
    engine.close()


async def test_utility_calls(engine: InProcessEngine) -> None:
    assert await engine.client.reset_prefix_cache()


async def test_admission(tmp_path: Path) -> None:
    client, _ = connected(tmp_path, AdmissionLimits(max_num_seqs=2, max_waiting=1))
    client.intake = STARTING
    with pytest.raises(RequestFailedError, match="starting"):
        client.check_admission()
    client.intake = OPEN
    client.generate(request("Say: ", n=2))
    client.check_admission()
    client.generate(request("Say: "))
    assert client.num_open_sequences == 3
    with pytest.raises(RequestFailedError) as refused:
        client.check_admission()
    assert refused.value.kind is ErrorKind.OVERLOADED


async def test_counters_survive_an_engine_restart(tmp_path: Path) -> None:
    metrics = ServiceMetrics("m")
    plan = plan_in(tmp_path)
    for _ in range(2):
        engine = InProcessEngine(plan, load_text_side(plan, None), metrics=metrics.of_engine())
        await texts(engine.client.generate(request("Say: ")))
        engine.close()
    lines = metrics.render().decode().splitlines()
    assert 'appliance_generation_tokens_total{engine="0",model_name="m"} 8.0' in lines
    assert 'vllm:generation_tokens_total{engine="0",model_name="m"} 8.0' in lines
    assert 'appliance_requests_finished_total{engine="0",finished_reason="stop",model_name="m"} 2.0' in lines
    assert 'appliance_time_to_first_token_seconds_count{engine="0",model_name="m"} 2.0' in lines


async def idle(client: EngineClient) -> None:
    """Until the engine says that nothing runs."""
    while True:
        stats = msgspec.msgpack.decode(await client.call("stats"))
        if stats["num_running"] == stats["num_waiting"] == 0:
            return


async def test_the_vocabulary_goes_before_the_first_constraint_of_each_engine(tmp_path: Path) -> None:
    client = EngineClient(AdmissionLimits(4, None))
    client.use_text(load_text_side(plan_in(tmp_path), None))
    client.intake = OPEN
    wish = Constraint(kind="regex", source="a+", field="guided_regex")
    for _ in range(2):
        link = Link()
        client.attach(link)
        client.generate(request("Say: "))
        client.generate(replace(request("Say: "), constraint=wish))
        client.generate(replace(request("Say: "), constraint=wish))
        kinds = [type(message).__name__ for message in link.sent]
        assert kinds == ["GenerateRequest", "Vocabulary", "GenerateRequest", "GenerateRequest"]
    client.introduces_vocabulary = True
    client.attach(link := Link())
    assert [type(message).__name__ for message in link.sent] == ["Vocabulary"]


@pytest.mark.parametrize("at_start", [True, False])
def test_a_plan_may_have_the_vocabulary_introduced_at_the_start(tmp_path: Path, at_start: bool) -> None:
    plan = plan_in(tmp_path)
    serving = msgspec.structs.replace(plan.serving, structured=StructuredPlan(at_start=at_start))
    client = EngineClient(AdmissionLimits(4, None))
    Supervisor(msgspec.structs.replace(plan, serving=serving), EnginePaths(tmp_path, tmp_path), client)
    assert client.introduces_vocabulary is at_start
