"""AsyncLLM: outputs as they come, in the form that was asked for, and requests that end early."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance import (
    AsyncEngineArgs,
    AsyncLLM,
    AsyncLLMEngine,
    LoRARequest,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
)
from appliance.offline.async_llm import _Reading
from appliance.offline.errors import ClosedError, InvalidRequestError
from tests.offline.conftest import ARGUMENTS


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[AsyncLLM]:
    made = AsyncLLM.from_engine_args(AsyncEngineArgs(str(model), **ARGUMENTS))
    yield made
    made.shutdown()


async def read(
    engine: AsyncLLM, key: str, kind: RequestOutputKind, prompt: str = "abc", n: int = 1
) -> list[RequestOutput]:
    params = SamplingParams(
        temperature=0.0 if n == 1 else 1.0, seed=1, n=n, max_tokens=32, output_kind=kind, ignore_eos=True
    )
    return [output async for output in engine.generate(prompt, params, key)]


async def test_the_three_kinds_say_the_same(engine: AsyncLLM) -> None:
    whole = await read(engine, "whole", RequestOutputKind.FINAL_ONLY)
    grown = await read(engine, "grown", RequestOutputKind.CUMULATIVE)
    pieces = await read(engine, "pieces", RequestOutputKind.DELTA)
    assert len(whole) == 1
    assert len(grown) > 1
    assert len(pieces) > 1
    [final] = whole
    assert final.request_id == "whole"
    assert final.finished
    assert [each.finished for each in grown] == [*[False] * (len(grown) - 1), True]
    assert grown[-1].outputs[0].text == final.outputs[0].text
    assert all(final.outputs[0].text.startswith(each.outputs[0].text) for each in grown)
    assert "".join(each.outputs[0].text for each in pieces) == final.outputs[0].text
    assert [token for each in pieces for token in each.outputs[0].token_ids] == final.outputs[0].token_ids


async def test_several_sequences_in_pieces(engine: AsyncLLM) -> None:
    [whole] = await read(engine, "n-whole", RequestOutputKind.FINAL_ONLY, n=2)
    texts = {0: "", 1: ""}
    for output in await read(engine, "n-pieces", RequestOutputKind.DELTA, n=2):
        for each in output.outputs:
            texts[each.index] += each.text
    assert [texts[0], texts[1]] == [each.text for each in whole.outputs]


async def test_many_at_once(engine: AsyncLLM) -> None:
    alone = [(await read(engine, f"a{at}", RequestOutputKind.FINAL_ONLY, f"text {at}"))[0] for at in range(12)]
    work = [read(engine, f"t{at}", RequestOutputKind.FINAL_ONLY, f"text {at}") for at in range(12)]
    together = await asyncio.gather(*work)
    assert [each[0].outputs[0].text for each in together] == [each.outputs[0].text for each in alone]


async def test_an_abort_ends_the_reader(engine: AsyncLLM) -> None:
    params = SamplingParams(max_tokens=400, ignore_eos=True)
    outputs = []
    async for output in engine.generate("abc", params, "long"):
        outputs.append(output)
        if len(outputs) == 2:
            await engine.abort("long")
    assert outputs[-1].finished
    assert outputs[-1].outputs[0].finish_reason == "abort"
    assert len(outputs[-1].outputs[0].token_ids) < 400
    await engine.abort("long")


async def test_a_reader_that_leaves_ends_the_request(engine: AsyncLLM) -> None:
    stream = engine.generate("abc", SamplingParams(max_tokens=400, ignore_eos=True), "left")
    await anext(stream)
    await stream.aclose()
    for _ in range(100):
        if not engine._session.engines.client.num_open_requests:
            break
        await asyncio.sleep(0.02)
    assert engine._session.engines.client.num_open_requests == 0


async def test_an_id_is_open_once_and_a_wrong_request_is_told(engine: AsyncLLM) -> None:
    stream = engine.generate("abc", SamplingParams(max_tokens=400, ignore_eos=True), "one")
    await anext(stream)
    with pytest.raises(InvalidRequestError, match="open already"):
        await anext(engine.generate("abc", None, "one"))
    await stream.aclose()
    with pytest.raises(InvalidRequestError, match="no tokens"):
        await anext(engine.generate("", None, "two"))


async def test_an_adapter(engine: AsyncLLM, adapter: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=8, output_kind=RequestOutputKind.FINAL_ONLY)
    sql = LoRARequest("sql", 1, str(adapter))
    [adapted] = [each async for each in engine.generate("abc", params, "with", lora_request=sql)]
    [plain] = [each async for each in engine.generate("abc", params, "without")]
    assert adapted.outputs[0].text != plain.outputs[0].text


async def test_calls(engine: AsyncLLM) -> None:
    assert (await engine.get_tokenizer()).encode("a")
    await engine.check_health()
    assert await engine.reset_prefix_cache()
    await engine.start_profile()
    await read(engine, "profiled", RequestOutputKind.FINAL_ONLY)
    [profile] = await engine.stop_profile()
    assert set(profile.kinds)
    assert await engine.stop_profile() == []
    assert engine.is_running
    assert AsyncLLMEngine is AsyncLLM


def test_an_engine_outlives_the_loops_that_read_it(engine: AsyncLLM) -> None:
    first = asyncio.run(read(engine, "x", RequestOutputKind.FINAL_ONLY))
    second = asyncio.run(read(engine, "x", RequestOutputKind.FINAL_ONLY))
    assert first[0].outputs == second[0].outputs


async def test_after_the_shutdown(model: Path) -> None:
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(str(model), **ARGUMENTS))
    stream = engine.generate("abc", SamplingParams(max_tokens=400, ignore_eos=True), "open")
    await anext(stream)
    await asyncio.to_thread(engine.shutdown)
    with pytest.raises(Exception, match="closed"):
        async for _ in stream:
            pass
    with pytest.raises(ClosedError):
        await anext(engine.generate("abc", None, "late"))


async def test_a_shutdown_ends_calls_and_readers_by_its_name(model: Path) -> None:
    """What a shutdown cuts off is neither a whole answer nor a task that someone cancelled."""
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(str(model), **ARGUMENTS))
    reading = _Reading(RequestOutputKind.DELTA)
    running = engine._session.thread.start(never)
    running.add_done_callback(reading.ended)
    call = asyncio.ensure_future(engine._on_loop(never))
    left = asyncio.ensure_future(engine._on_loop(never))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.to_thread(engine.shutdown)
    with pytest.raises(ClosedError, match="was closed"):
        await anext(reading)
    with pytest.raises(ClosedError, match="was closed"):
        await call
    with pytest.raises(asyncio.CancelledError):
        await left


async def never() -> None:
    await asyncio.Event().wait()
