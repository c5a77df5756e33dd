"""Pauses from Python, by vLLM's names: what is open ends, runs on or stands still, and what comes waits."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from appliance import LLM, AsyncEngineArgs, AsyncLLM, LoRARequest, RequestOutput, RequestOutputKind, SamplingParams
from appliance.offline.errors import InvalidRequestError, NotHereError
from tests.e2e.served import make_random_mixture
from tests.offline.conftest import ARGUMENTS


def slow(output: list[int], logits: object) -> object:
    """A pause comes in time, however busy the machine is."""
    time.sleep(0.002)
    return logits


LENGTH = 400
LONG = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
SLOW = replace(LONG, logits_processors=[slow])
SHORT = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[AsyncLLM]:
    made = AsyncLLM.from_engine_args(AsyncEngineArgs(str(model), **ARGUMENTS))
    yield made
    made.shutdown()


class Reader:
    """A request that is read as it grows."""

    def __init__(self, engine: AsyncLLM, key: str, params: SamplingParams = LONG, prompt: str = "abc") -> None:
        self.tokens: list[int] = []
        self.last: RequestOutput | None = None
        self._reading = asyncio.create_task(self._read(engine, key, params, prompt))

    async def _read(self, engine: AsyncLLM, key: str, params: SamplingParams, prompt: str) -> None:
        async for output in engine.generate(prompt, params, key):
            self.tokens += output.outputs[0].token_ids
            self.last = output

    @property
    def is_over(self) -> bool:
        return self._reading.done()

    async def until(self, count: int) -> None:
        while len(self.tokens) < count:
            await asyncio.sleep(0.001)

    async def end(self) -> str | None:
        await asyncio.wait_for(self._reading, 30)
        assert self.last is not None
        return self.last.outputs[0].finish_reason


async def whole(engine: AsyncLLM, prompt: str = "abc") -> list[int]:
    reader = Reader(engine, f"whole {prompt}", LONG, prompt)
    assert await reader.end() == "length"
    return reader.tokens


async def test_kept_requests_stand_still_and_then_say_what_they_would_have_said(engine: AsyncLLM) -> None:
    expected = await whole(engine)
    reader = Reader(engine, "kept", SLOW)
    await reader.until(5)
    await engine.pause_generation(mode="keep")
    assert await engine.is_paused()
    await asyncio.sleep(0.05)  # what was said before the pause arrives
    said = len(reader.tokens)
    late = Reader(engine, "late", SHORT)
    await asyncio.sleep(0.3)
    assert (len(reader.tokens), late.tokens) == (said, [])
    assert 5 <= said < LENGTH
    await engine.resume_generation()
    assert not await engine.is_paused()
    assert await reader.end() == "length"
    assert reader.tokens == expected
    assert await late.end() == "length"


async def test_a_pause_that_waits_returns_when_the_last_one_has_ended(engine: AsyncLLM) -> None:
    reader = Reader(engine, "running", SLOW)
    await reader.until(2)
    await engine.pause_generation(wait_for_inflight_requests=True, clear_cache=False)
    assert await reader.end() == "length"
    late = Reader(engine, "waits", SHORT)
    await asyncio.sleep(0.1)
    assert late.tokens == []
    await engine.resume_generation()
    assert await late.end() == "length"


async def test_a_pause_aborts_by_itself_and_forgets_prefixes(engine: AsyncLLM) -> None:
    reader = Reader(engine, "aborted", SLOW)
    await reader.until(2)
    await engine.pause_generation()
    assert await reader.end() == "abort"
    late = Reader(engine, "given up", SHORT)
    await asyncio.sleep(0.05)
    await engine.abort("given up")
    assert await late.end() == "abort"
    await engine.resume_generation()
    with pytest.raises(InvalidRequestError, match="it must be abort, wait, keep"):
        await engine.pause_generation(mode="soon")


async def test_an_engine_that_is_paused_is_shut_down_at_once(model: Path) -> None:
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(str(model), **ARGUMENTS))
    reader = Reader(engine, "kept", SLOW)
    await reader.until(2)
    await engine.pause_generation(mode="keep")
    engine.shutdown()
    with pytest.raises(Exception, match="closed"):
        await reader.end()


def test_weights_and_adapters_change_while_a_model_is_paused(model: Path, adapter: Path) -> None:
    with LLM(str(model), **ARGUMENTS) as llm:
        expected = llm.generate("abc", SHORT, use_tqdm=False)[0].outputs[0].token_ids
        llm.sleep(level=0, mode="wait")
        assert llm.update_weights(model).version == 1
        llm.wake_up(tags=["scheduling"])
        assert llm.generate("abc", SHORT, use_tqdm=False)[0].outputs[0].token_ids == expected
        llm.llm_engine.sleep(0)
        llm.llm_engine.add_request("one", "abc", SHORT, lora_request=LoRARequest("sql", 1, str(adapter)))
        llm.llm_engine.wake_up()
        while llm.llm_engine.has_unfinished_requests():
            llm.llm_engine.step()
        with pytest.raises(NotHereError, match="cannot sleep"):
            llm.sleep(1)
        with pytest.raises(NotHereError, match="cannot sleep"):
            llm.wake_up(["weights"])
        with pytest.raises(InvalidRequestError, match="tags are weights, kv_cache, scheduling"):
            llm.wake_up(["dreams"])


def test_prefixes_are_forgotten_while_requests_run(model: Path) -> None:
    with LLM(str(model), **ARGUMENTS) as llm:
        engine = llm.llm_engine
        params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
        expected = llm.generate("abc", params, use_tqdm=False)[0].outputs[0].token_ids
        engine.add_request("one", "abc", params)
        engine.step()
        assert not llm.reset_prefix_cache()
        assert llm.reset_prefix_cache(reset_running_requests=True)
        while engine.has_unfinished_requests():
            outputs = engine.step()
        assert outputs[-1].outputs[0].token_ids == expected
        with pytest.raises(NotHereError, match="reset_connector"):
            llm.reset_prefix_cache(reset_connector=True)


async def test_a_paused_replica_takes_part_in_the_steps_of_the_others(tmp_path: Path) -> None:
    """They have the experts of the model among them, and run every step together."""
    make_random_mixture(tmp_path)
    arguments = {"max_model_len": 512, "num_gpu_blocks_override": 128}
    spread = {**arguments, "data_parallel_size": 2, "enable_expert_parallel": True}
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(str(tmp_path), **spread))
    readers = [Reader(engine, str(number), LONG, f"text {number}") for number in range(4)]
    for each in readers:
        await each.until(2)
    first = engine._session.engines.client.numbered_engines[0]
    await engine._on_loop(lambda: first.pause("keep", clears_cache=False))
    await asyncio.sleep(0.1)
    said = [len(each.tokens) for each in readers]
    deadline = time.monotonic() + 30
    while sum(each.is_over for each in readers) < 2 and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    still = [number for number, each in enumerate(readers) if len(each.tokens) == said[number] < LENGTH]
    assert len(still) == 2, "those of the other replica ended"
    await engine.resume_generation()
    assert [await each.end() for each in readers] == ["length"] * 4
    expected = [await whole(engine, f"text {number}") for number in range(4)]
    assert [each.tokens for each in readers] == expected
    engine.shutdown()


async def test_all_replicas_are_paused(model: Path) -> None:
    arguments = {"max_model_len": 512, "num_gpu_blocks_override": 128, "data_parallel_size": 2}
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(str(model), **arguments))
    readers = [Reader(engine, str(number), LONG, f"text {number}") for number in range(4)]
    for each in readers:
        await each.until(2)
    await engine.pause_generation(mode="keep")
    await asyncio.sleep(0.1)
    said = [len(each.tokens) for each in readers]
    await asyncio.sleep(0.3)
    assert [len(each.tokens) for each in readers] == said
    assert min(said) < LENGTH
    await engine.resume_generation()
    assert [await each.end() for each in readers] == ["length"] * 4
    expected = [await whole(engine, f"text {number}") for number in range(4)]
    assert [each.tokens for each in readers] == expected
    engine.shutdown()
