"""The figures of an engine, in vLLM's classes and under the names that `/metrics` has."""

from pathlib import Path

import prometheus_client
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from appliance import LLM, AsyncEngineArgs, AsyncLLM, EngineArgs, LLMEngine, SamplingParams
from appliance.offline.metrics import Counter, EngineFigure, Gauge, Histogram, Vector, read_metrics
from tests.offline.conftest import ARGUMENTS

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3}


def named(metrics: list[EngineFigure], name: str) -> EngineFigure:
    [found] = [each for each in metrics if each.name == name]
    return found


def test_figures_are_zero_and_then_count(model: Path) -> None:
    with LLM(str(model), **ARGUMENTS) as llm:
        before = llm.get_metrics()
        tokens, first = named(before, "vllm:generation_tokens"), named(before, "vllm:time_to_first_token_seconds")
        assert isinstance(tokens, Counter)
        assert (tokens.value, tokens.labels["engine"]) == (0, "0")
        assert isinstance(first, Histogram)
        assert (first.count, first.sum, set(first.buckets.values())) == (0, 0.0, {0})
        llm.generate(["abc", "abcdef"], PARAMS, use_tqdm=False)
        after = llm.get_metrics()
        tokens, first = named(after, "vllm:generation_tokens"), named(after, "vllm:time_to_first_token_seconds")
        assert isinstance(tokens, Counter)
        assert tokens.value == 16
        assert isinstance(first, Histogram)
        assert first.count == first.buckets["+Inf"] == 2
        assert first.sum > 0
        assert list(first.buckets.values()) == sorted(first.buckets.values())
        running = named(after, "vllm:num_requests_running")
        assert isinstance(running, Gauge)
        assert running.value == 0.0
        steps = named(after, "vllm:iteration_tokens_total")
        assert isinstance(steps, Histogram)
        assert steps.count > 0


def test_seconds_are_counted_in_parts() -> None:
    registry = CollectorRegistry()
    for name, value in (("swap_seconds", 0.25), ("swapped_bytes", 8192.0)):
        prometheus_client.Counter(name, "", registry=registry).inc(value)
    values = {each.name: each.value for each in read_metrics(registry) if isinstance(each, Counter)}
    assert values == {"swap_seconds": 0.25, "swapped_bytes": 8192}
    assert isinstance(values["swapped_bytes"], int)


def test_names_are_those_of_the_text_format(llm: LLM) -> None:
    text = llm._session.metrics.render().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    found = {each.name for each in llm.get_metrics()}
    assert found == {name for name, family in families.items() if family.samples and not name.endswith("_created")}
    assert {"vllm:generation_tokens", "appliance_generation_tokens", "vllm:cache_config_info"} <= found


def test_accepted_drafts_by_position_are_a_vector(model: Path) -> None:
    with LLM(str(model), speculative_config=DRAFTS, **ARGUMENTS) as llm:
        llm.generate("ab " * 40, SamplingParams(temperature=0, max_tokens=60, ignore_eos=True), use_tqdm=False)
        found = [each for each in llm.get_metrics() if isinstance(each, Vector)]
        drafts = named(llm.get_metrics(), "vllm:spec_decode_num_drafts")
        assert isinstance(drafts, Counter)
        assert drafts.value > 0
        vector = next(each for each in found if each.name == "vllm:spec_decode_num_accepted_tokens_per_pos")
        assert "position" not in vector.labels
        assert vector.values == sorted(vector.values, reverse=True)
        accepted = named(llm.get_metrics(), "vllm:spec_decode_num_accepted_tokens")
        assert isinstance(accepted, Counter)
        assert sum(vector.values) == accepted.value > 0


def test_each_engine_has_figures_of_its_own(llm: LLM, model: Path) -> None:
    engine = LLMEngine.from_engine_args(EngineArgs(str(model), **ARGUMENTS))
    tokens = named(engine.get_metrics(), "vllm:prompt_tokens")
    assert isinstance(tokens, Counter)
    assert tokens.value == 0
    engine.shutdown()
    assert named(llm.llm_engine.get_metrics(), "vllm:prompt_tokens").name == "vllm:prompt_tokens"


async def test_an_engine_of_streams_has_them(model: Path) -> None:
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(str(model), **ARGUMENTS))
    async for _ in engine.generate("abc", PARAMS, "one"):
        pass
    tokens = named(await engine.get_metrics(), "vllm:generation_tokens")
    engine.shutdown()
    assert isinstance(tokens, Counter)
    assert tokens.value == 8


def test_replicas_are_told_apart_by_their_number(model: Path) -> None:
    with LLM(str(model), max_model_len=256, num_gpu_blocks_override=64, data_parallel_size=2) as llm:
        llm.generate([f"text {number}" for number in range(8)], PARAMS, use_tqdm=False)
        counts = [each for each in llm.get_metrics() if each.name == "vllm:generation_tokens"]
        assert {each.labels["engine"] for each in counts} == {"0", "1"}
        assert sum(each.value for each in counts if isinstance(each, Counter)) == 64
