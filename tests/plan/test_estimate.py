"""Estimates by hand, and advice that is planned before it is given."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from appliance.checkpoint.facts import ModelFacts
from appliance.cli import plan as plan_verb
from appliance.cli.arguments.machine import PlanArguments
from appliance.hardware import load_profiles, select_profile
from appliance.hardware.facts import MeasuredFacts
from appliance.plan.advice import Advice, advise, figures, full_batch, missed_bounds
from appliance.plan.compile import run_passes
from appliance.plan.estimate import Estimate, Workload, decode_sight, estimate, prompt_sight
from appliance.plan.inputs import PlanInputs
from appliance.plan.programs import Programs, program_of
from appliance.plan.spread import CoreUse, spreads
from appliance.plan.types import EnginePlan
from appliance.program.work import ChunkReach, Reach

from .machines import MODEL, load, machine, plan, qwen, small_model, write_spec

READING = MeasuredFacts(read_bandwidth=1e9)  # no peak bounds anything
MEASURED = MeasuredFacts(
    read_bandwidth=18e9, int8_peak=2e11, f32_peak=8e10, one_core_read_bandwidth=9e9, one_core_int8_peak=2.5e10
)
COMPUTING = MeasuredFacts(read_bandwidth=1e18, f32_peak=1e9, bf16_peak=1e9, int8_peak=1e9)


def estimated(found: EnginePlan, model: ModelFacts, measured: MeasuredFacts, workload: Workload) -> Estimate:
    result = estimate(found, program_of(found, model, Programs()), measured, workload)
    assert result is not None
    return result


def test_a_decode_step_reads_the_matrices_once_and_each_cache() -> None:
    model = small_model()
    found = plan(load(), model)
    (head,) = [each for each in model.tensors if each.name == "lm_head.weight"]
    tables = [each for each in found.precision.weights if each.role == "embedding"]
    linear = sum(each.planned_bytes for each in found.precision.weights if each.role == "linear")
    heads = tables[0].planned_bytes / 2  # the other half is the table of the input, of which rows are read
    cached = 3 * 100 * found.memory[0].kv_bytes_per_token
    embedded = 3 * 64 * 4
    result = estimated(found, model, READING, Workload(streams=3, prompt=96, answer=8))
    assert head.shape == (320, 64)
    assert result.itl_s == pytest.approx((linear + heads + cached + embedded) / 1e9)
    assert result.output_tokens_per_s == pytest.approx(3 / result.itl_s)
    assert result.decode_bound == "memory"


def elements_behind_the_last_attention(model: ModelFacts) -> tuple[int, int]:
    """Elements of the matrices that meet every token, and of those that only meet sampled rows."""
    sizes = {each.name: each.shape[0] * each.shape[1] for each in model.tensors if len(each.shape) == 2}
    behind = [name for name in sizes if ".1." in name and ("o_proj" in name or "mlp" in name)] + ["lm_head.weight"]
    assert len(behind) == 5
    sampled = sum(sizes[name] for name in behind)
    return sum(sizes.values()) - sampled - sizes["model.embed_tokens.weight"], sampled


def test_a_prompt_computes_with_every_matrix_and_once_behind_the_last_attention() -> None:
    model = small_model()
    found = plan(load(), model)
    every, sampled = elements_behind_the_last_attention(model)
    pairs = 16 * 17 // 2
    operations = 2 * every * 16 + 2 * sampled + 4 * 4 * 16 * 2 * pairs  # 4 heads of 16, 2 layers
    result = estimated(found, model, COMPUTING, Workload(prompt=16))
    assert result.ttft_s == pytest.approx(operations / 1e9, rel=0.01)
    assert result.prefill_tokens_per_s == pytest.approx(16 / result.ttft_s)


def test_a_prompt_is_held_up_by_what_its_kernels_were_measured_to_reach() -> None:
    model = small_model()
    found = plan(load(), model)
    layouts = {each.layout for each in found.precision.weights if each.role != "other"}
    halved = msgspec.structs.replace(COMPUTING, kernel_rates=dict.fromkeys([*layouts, "attention"], 0.5e9))
    work = Workload(prompt=64)
    peaks, rates = (estimated(found, model, measured, work) for measured in (COMPUTING, halved))
    one_row = 2 * elements_behind_the_last_attention(model)[1] / 1e9  # whose kernels are others
    assert rates.ttft_s - one_row == pytest.approx(2 * (peaks.ttft_s - one_row))
    assert rates.itl_s == peaks.itl_s


def test_one_thread_has_one_core() -> None:
    measured = msgspec.structs.replace(READING, one_core_read_bandwidth=0.25e9)
    model = small_model()
    alone, every = (
        estimated(plan(load(MODEL, f"hardware.num_threads={n}"), model), model, measured, Workload()) for n in (1, 8)
    )
    assert alone.itl_s == pytest.approx(4 * every.itl_s)


def test_each_replica_has_its_part_of_the_machine() -> None:
    model = small_model()
    one, two = (
        estimated(plan(load(MODEL, f"parallelism.data={n}"), model), model, READING, Workload()) for n in (1, 2)
    )
    assert two.itl_s == pytest.approx(2 * one.itl_s)


def test_a_whole_request_is_its_prompt_and_its_share_of_the_steps() -> None:
    model = qwen()
    result = estimated(plan(load(), model), model, READING, Workload(streams=4, prompt=100, answer=20))
    assert result.answer_tokens_per_s == pytest.approx(20 / (result.ttft_s + 20 / 4 * result.itl_s))


def sees(reach: Reach, position: int) -> set[int]:
    first = {None: 0, 5: position - 4, ChunkReach(5): position - position % 5}[reach]
    return set(range(max(0, first), position + 1))


@pytest.mark.parametrize("reach", [None, 5, ChunkReach(5)])
@pytest.mark.parametrize(("size", "end"), [(1, 1), (3, 3), (4, 7), (5, 10), (9, 23)])
def test_keys_and_visits_are_those_of_each_query(reach: Reach, size: int, end: int) -> None:
    each = [sees(reach, position) for position in range(end - size, end)]
    keys, visits = prompt_sight(reach, size, end)
    assert keys == len(set.union(*each))
    assert visits == sum(map(len, each))


@pytest.mark.parametrize(("reach", "seen"), [(None, 12), (5, 5), (ChunkReach(5), 3), (ChunkReach(20), 12)])
def test_a_decode_is_anywhere_in_its_chunk(reach: Reach, seen: int) -> None:
    assert decode_sight(reach, 12) == seen


def inputs_of(text: str, *overrides: str) -> PlanInputs:
    facts = msgspec.structs.replace(machine(), measured=MEASURED)
    profile = select_profile(facts, load_profiles()).profile
    return PlanInputs(loaded=load(text, *overrides), facts=facts, profile=profile, model=qwen())


def advice_for(inputs: PlanInputs) -> dict[str, Advice]:
    def planner(changed: PlanInputs):  # type: ignore[no-untyped-def] # what run_passes gives
        outcome = run_passes(changed)
        return outcome.plan, outcome.ledger

    measured = inputs.facts.measured
    assert measured is not None
    found = advise(inputs, run_passes(inputs).plan, measured, planner)
    return {f"{each.change.path}={each.change.value}": each for each in found}


def test_a_smaller_cache_type_and_all_cores_are_advised() -> None:
    found = advice_for(inputs_of(MODEL, "cache.dtype=float32", "hardware.num_threads=1"))
    assert found["cache.dtype=bfloat16"].gains["cache"] == pytest.approx(2, rel=0.05)
    assert found["hardware.num_threads=8"].gains["prefill"] > 2
    assert list(found) == sorted(found, key=lambda name: -max(found[name].gains.values()))


def test_fewer_at_once_are_advised_only_to_keep_a_promise() -> None:
    assert not any(name.startswith("scheduler.max_num_seqs") for name in advice_for(inputs_of(MODEL)))
    inputs = inputs_of(MODEL, "slo.itl_p95=100ms")
    (name,) = [name for name in advice_for(inputs) if name.startswith("scheduler.max_num_seqs")]
    advised = advice_for(inputs)[name]
    assert advised.after.itl_s <= 0.1 < advised.before.itl_s


def test_ranks_cost_meetings_and_replicas_share_the_bus() -> None:
    inputs = inputs_of(MODEL)

    def planner(changed: PlanInputs):  # type: ignore[no-untyped-def] # what run_passes gives
        outcome = run_passes(changed)
        return outcome.plan, outcome.ledger

    def found(meeting_s: float, machine: MeasuredFacts = MEASURED) -> dict[tuple[str, int], CoreUse]:
        measured = msgspec.structs.replace(machine, meeting_s=meeting_s)
        several = spreads(inputs, run_passes(inputs).plan, measured, planner)
        return {(each.path, each.count): each for each in several}

    free, dear = found(0.0), found(1e-4)
    ranks, replicas = ("parallelism.tensor", 2), ("parallelism.data", 2)
    assert free[ranks].decode == pytest.approx(1)
    assert dear[ranks].decode < 0.9 * free[ranks].decode
    assert dear[replicas] == free[replicas]
    assert free[replicas].throughput == pytest.approx(1)  # what computing bounds is divided
    assert found(0.0, READING)[replicas].throughput < 0.95  # each reads all weights
    ranked = inputs_of(MODEL, "parallelism.tensor=2")
    assert spreads(ranked, run_passes(ranked).plan, MEASURED, planner) == []


def test_a_promise_that_cannot_be_kept_is_told() -> None:
    inputs = inputs_of(MODEL, "slo.itl_p95=100ms", "slo.ttft_p95=60s")
    found, measured = run_passes(inputs).plan, inputs.facts.measured
    assert measured is not None
    alone, full = (estimated(found, inputs.model, measured, work) for work in (Workload(), full_batch(found)))
    (told,) = missed_bounds(found, alone, full)
    assert told.startswith("slo.itl_p95 of 0.1 s cannot be met")
    assert figures(found, inputs, measured) is not None


@pytest.fixture
def spec(tmp_path: Path) -> list[str]:
    """The arguments of a plan of a small model."""
    facts = tmp_path / "model.json"
    facts.write_bytes(msgspec.json.encode(small_model()))
    return [str(write_spec(tmp_path, MODEL)), str(facts)]


def run_plan(spec: list[str], tmp_path: Path, measured: MeasuredFacts | None, **options: Any) -> int:
    hardware = tmp_path / "machine.json"
    hardware.write_bytes(msgspec.json.encode(msgspec.structs.replace(machine(), measured=measured)))
    arguments = PlanArguments(spec=spec[0], hardware=str(hardware), model_facts=Path(spec[1]), **options)
    return plan_verb.run(arguments)


def test_the_verb_prints_estimate_and_advice(
    spec: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_plan(spec, tmp_path, COMPUTING) == 0
    text = capsys.readouterr().out
    assert "\nestimate   one prompt of 512 tokens" in text
    assert "advice" not in text
    assert "replicas" not in text
    assert run_plan(spec, tmp_path, COMPUTING, advise=True) == 0
    text = capsys.readouterr().out
    assert "advice" in text
    assert "\nparallelism.tensor: 2  x" in text
    assert run_plan(spec, tmp_path, COMPUTING, advise=True, as_json=True) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"figures", "advice", "several"}


def test_the_verb_says_of_what_an_estimate_is(
    spec: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_plan(spec, tmp_path, COMPUTING, overrides=("parallelism.data=2",)) == 0
    assert "\nestimate   of each of 2 replicas, while the others have as much to do:" in capsys.readouterr().out


def test_advice_needs_a_measured_machine(spec: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_plan(spec, tmp_path, None) == 0
    assert "estimate" not in capsys.readouterr().out
    assert run_plan(spec, tmp_path, None, advise=True) != 0
    assert "doctor --measure" in capsys.readouterr().err
