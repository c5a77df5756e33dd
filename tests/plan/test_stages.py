"""Pipeline stages in plans: who has which layers, what each rank needs, and what is refused."""

from pathlib import Path

import pytest

from appliance.base.errors import SpecError
from appliance.plan.prepare import prepare
from appliance.plan.types import EnginePlan
from appliance.program.placement import ExpertPlacing
from tests.models.tiny import make_tiny
from tests.plan.machines import MODEL, load, plan

SPEC = """
api_version: appliance/v1
kind: Deployment
name: tiny
model: {{source: {source}, max_model_len: 128, skip_tokenizer_init: true}}
hardware: {{num_threads: 1, memory: {{kv_cache: 1MiB}}}}
"""


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("olmo3")
    make_tiny("olmo3", folder / "model")  # four layers, of which each second one has a window
    path = folder / "spec.yaml"
    path.write_text(SPEC.format(source=folder / "model"))
    return path


def plan_of(spec: Path, *overrides: str) -> EnginePlan:
    return prepare(str(spec), overrides).plan


def windows(plan: EnginePlan) -> list[int | None]:
    return [group.window for group in plan.memory[0].kv_groups]


def sizes(plan: EnginePlan) -> dict[str, int]:
    return {item.name: item.size_bytes for item in plan.memory[1].items}


def test_a_stage_has_its_layers_and_no_others(spec: Path) -> None:
    one, two = plan_of(spec), plan_of(spec, "parallelism.pipeline=2")
    assert two.parallel.layers == (2, 2)
    assert two.parallel.num_ranks == len(two.memory) == 2
    total, half = (plan.memory[0].kv_bytes_per_block * len(windows(plan)) for plan in (one, two))
    assert half * 4 == total * 3  # two of the three caches with a window, and the one without
    whole = next(item.size_bytes for item in one.memory[0].items if item.name == "weights")
    assert whole / 2 < sizes(two)["weights"] < whole  # the embeddings are in the first, the head in the last
    assert sizes(two)["handed_on"] > 0
    assert {*windows(one)} == {*windows(two)}
    uneven = plan_of(spec, "parallelism.pipeline=2", "parallelism.layer_partition=[3, 1]")
    assert uneven.memory[0].kv_bytes_per_block * len(windows(uneven)) > half


def test_steps_wait_for_each_other_only_where_they_must(spec: Path) -> None:
    def at_once(*overrides: str) -> object:
        decisions = plan_of(spec, "parallelism.pipeline=2", *overrides).decisions
        return next(each.value for each in decisions if each.path == "parallel.steps_at_once")

    assert at_once() == 2
    assert at_once("speculative.method=ngram") == 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("parallelism.pipeline=5",), "5 pipeline stages cannot share 4 layers"),
        (("parallelism.pipeline=2", "parallelism.layer_partition=[2, 1]"), "3 layers together, and the model has 4"),
    ],
)
def test_refusals(spec: Path, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        plan_of(spec, *overrides)


def test_a_cache_that_another_stage_would_read_is_refused(tmp_path: Path) -> None:
    make_tiny("gemma3n", tmp_path / "model")
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC.format(source=tmp_path / "model"))
    with pytest.raises(SpecError, match="cannot be cut into 2 stages: its layers read"):
        plan_of(path, "parallelism.pipeline=2")


def test_experts_are_spread_where_there_are_some(spec: Path, tmp_path: Path) -> None:
    make_tiny("qwen2_moe", tmp_path / "model")
    mixture = tmp_path / "spec.yaml"
    mixture.write_text(SPEC.format(source=tmp_path / "model"))
    spread = "parallelism.tensor=2", "parallelism.expert=true"
    plan = plan_of(mixture, *spread)
    each = next(decision.value for decision in plan.decisions if decision.path == "parallel.experts_per_rank")
    assert plan.model.experts is not None
    assert isinstance(each, int)
    assert each * 2 == plan.model.experts.num_experts
    with pytest.raises(SpecError, match="has no experts"):
        plan_of(spec, *spread)


def test_ranks_exchange_by_the_vendor_s_library_where_there_is_one() -> None:
    wish = "parallelism.disable_custom_all_reduce=true"
    found = plan(load(MODEL, "hardware.kernels.kernel_set=torch", wish))
    assert [each.value for each in found.decisions if each.path == "parallel.collectives"] == ["library"]
    with pytest.raises(SpecError, match="memory that they share"):
        plan(load(MODEL, wish))


def test_experts_are_placed_where_there_are_some(spec: Path, tmp_path: Path) -> None:
    make_tiny("qwen2_moe", tmp_path / "model")
    mixture = tmp_path / "spec.yaml"
    mixture.write_text(SPEC.format(source=tmp_path / "model"))
    strategy = "parallelism.expert_placement_strategy=round_robin"
    plan = plan_of(mixture, "parallelism.tensor=2", strategy)
    assert plan.parallel.placing == ExpertPlacing("round_robin")
    (reason,) = (decision.reason for decision in plan.decisions if decision.path == "parallel.experts_per_rank")
    assert "one after the other" in reason
    in_order = plan_of(mixture, "parallelism.tensor=2")
    weights = [
        [item.size_bytes for item in each.memory[0].items if item.name == "weights"] for each in (plan, in_order)
    ]
    assert weights[0] == weights[1]
    with pytest.raises(SpecError, match="there is one"):
        plan_of(mixture, strategy)
    with pytest.raises(SpecError, match="has no experts"):
        plan_of(spec, "parallelism.tensor=2", strategy)


def test_experts_move_where_they_can(spec: Path, tmp_path: Path) -> None:
    make_tiny("mixtral", tmp_path / "model")
    mixture = tmp_path / "spec.yaml"
    mixture.write_text(SPEC.format(source=tmp_path / "model"))
    moves = ("parallelism.tensor=2", "parallelism.expert=true", "parallelism.enable_eplb=true")
    whole = plan_of(mixture, "parallelism.tensor=2")
    assert whole.model.experts is not None
    copies = whole.model.experts.num_experts  # so that each rank has all
    plan = plan_of(mixture, *moves, f"parallelism.num_redundant_experts={copies}")
    assert plan.parallel.placing == ExpertPlacing("linear", copies, is_balanced=True)
    assert not plan.loading.keep_packed
    values = {decision.path: decision.value for decision in plan.decisions}
    assert values["parallel.experts_per_rank"] == copies
    assert plan.model.experts is not None
    assert plan.model.experts.num_experts == copies
    assert values["parallel.redundant_bytes"] == plan.model.experts.size_bytes // 2 > 0
    with pytest.raises(SpecError, match="experts that move"):
        plan_of(mixture, *moves, "model.weight_update_paths=[/there]")
    assert values["parallel.move_bytes"] == plan.model.experts.size_bytes // plan.model.experts.num_layers
    refused = {
        "do not share out evenly": (*moves, "parallelism.num_redundant_experts=1"),
        "not of reference": (*moves, "hardware.kernels.kernel_set=reference"),
        "by their load": (*moves, "parallelism.expert_placement_strategy=round_robin"),
        "take along what adapters": (*moves, "lora={max_loras: 1, max_rank: 8}"),
    }
    for message, overrides in refused.items():
        with pytest.raises(SpecError, match=message):
            plan_of(mixture, *overrides)
    unused = plan_of(mixture, "parallelism.eplb_window_size=7")
    (reason,) = (each.reason for each in unused.decisions if each.path == "parallel.eplb_window_size")
    assert "changes nothing" in reason
