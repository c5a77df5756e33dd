"""Which figures of a scenario the plan's estimate bounds."""

import msgspec

from appliance.bench.scenario import PRESETS
from appliance.cli.bench import estimated
from appliance.hardware import load_profiles, select_profile
from appliance.hardware.facts import MeasuredFacts
from appliance.plan.compile import run_passes
from appliance.plan.estimate import Workload, estimate
from appliance.plan.inputs import PlanInputs
from appliance.plan.prepare import Prepared
from appliance.plan.programs import Programs, program_of
from tests.plan.machines import load, machine, qwen

MEASURED = MeasuredFacts(read_bandwidth=18e9, int8_peak=2e11, f32_peak=8e10)


def prepared(measured: MeasuredFacts | None) -> Prepared:
    facts = msgspec.structs.replace(machine(), measured=measured)
    profile = select_profile(facts, load_profiles()).profile
    inputs = PlanInputs(loaded=load(), facts=facts, profile=profile, model=qwen())
    return Prepared(inputs.loaded, inputs.model, run_passes(inputs).plan, inputs)


def test_one_stream_has_its_latencies_and_many_have_their_output() -> None:
    found = prepared(MEASURED)
    single = estimated(PRESETS["single"], found)
    program = program_of(found.plan, found.model, Programs())
    bound = estimate(found.plan, program, MEASURED, Workload(streams=1, prompt=512, answer=129))
    assert bound is not None
    assert single == {
        "output_throughput": bound.answer_tokens_per_s,
        "prefill_throughput": bound.prefill_tokens_per_s,
        "decode_throughput": bound.decode_tokens_per_s,
    }
    assert set(estimated(PRESETS["online16"], found)) == {"output_throughput"}


def test_a_shared_prefix_is_no_work() -> None:
    found = prepared(MEASURED)
    shared = PRESETS["shared-prefix"]
    whole = msgspec.structs.replace(shared, prefix_len=0)
    assert estimated(shared, found)["output_throughput"] > 2 * estimated(whole, found)["output_throughput"]


def test_nothing_is_estimated_without_measured_figures_or_known_lengths() -> None:
    assert estimated(PRESETS["single"], prepared(None)) == {}
    traced = msgspec.structs.replace(PRESETS["single"], workload="trace", trace_file="t.jsonl")
    assert estimated(traced, prepared(MEASURED)) == {}
