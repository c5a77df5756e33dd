"""The in-process driver with the scripted engine: every request is answered, counted and timed."""

from appliance.bench.offline import run_offline
from appliance.bench.record import summarize
from appliance.bench.scenario import Scenario
from appliance.engine.inproc import InprocEngine
from tests.bench.scripted import scripted_engine


def ran(scenario: Scenario, engine: InprocEngine) -> list[int]:
    seen: list[int] = []
    rounds = run_offline(scenario, engine, (), 400, lambda done, total: seen.append(done))
    for records in rounds:
        figures = summarize(records, {})
        assert figures.failed == 0
        assert figures.output_tokens == scenario.num_prompts * scenario.output_len
        assert figures.input_tokens == scenario.num_prompts * scenario.input_len
    assert len(rounds) == scenario.repeats
    return seen


def test_throughput_sends_everything_at_once() -> None:
    scenario = Scenario(name="t", kind="throughput", num_prompts=6, input_len=9, output_len=5, repeats=2)
    with scripted_engine() as engine:
        assert ran(scenario, engine) == [6, 6]


def test_latency_runs_batch_after_batch() -> None:
    scenario = Scenario(name="l", kind="latency", num_prompts=6, batch_size=2, input_len=9, output_len=3)
    with scripted_engine() as engine:
        assert ran(scenario, engine) == [2, 4, 6]
