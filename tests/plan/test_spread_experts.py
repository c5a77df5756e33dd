"""Replicas that have experts among them in plans: what each of them needs, and what is refused."""

from pathlib import Path

import pytest

from appliance.base.errors import SpecError
from appliance.deploy.reconcile import PlanChange
from appliance.deploy.rolling import can_roll
from appliance.plan.prepare import prepare
from appliance.plan.types import EnginePlan
from tests.engine.test_rank_group import machine_with
from tests.models.tiny import make_tiny

SPEC = """
api_version: appliance/v1
kind: Deployment
name: tiny
model: {{source: {source}, max_model_len: 128, skip_tokenizer_init: true}}
hardware: {{num_threads: 1, memory: {{kv_cache: 1MiB}}}}
"""
SPREAD = ("parallelism.data=2", "parallelism.expert=true")


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixture")
    make_tiny("qwen3_moe", folder / "model")
    path = folder / "spec.yaml"
    path.write_text(SPEC.format(source=folder / "model"))
    return path


def plan_of(spec: Path, *overrides: str) -> EnginePlan:
    return prepare(str(spec), overrides).plan


def sizes(plan: EnginePlan) -> dict[str, int]:
    return {item.name: item.size_bytes for item in plan.memory[0].items}


def test_a_replica_has_all_but_the_others_experts(spec: Path) -> None:
    plain, spread = plan_of(spec, "parallelism.data=2"), plan_of(spec, *SPREAD)
    assert plain.model.experts is not None
    assert spread.model.experts is not None
    lacks = plain.model.experts.size_bytes - spread.model.experts.size_bytes
    assert lacks == plain.model.experts.size_bytes // 2
    assert sizes(plain)["weights"] - sizes(spread)["weights"] == lacks
    assert sizes(spread)["spread_rows"] > 0
    assert "spread_rows" not in sizes(plain)
    decided = {each.path: each.value for each in spread.decisions}
    assert (decided["parallel.experts_per_rank"], decided["parallel.steps_of_all"]) == (3, 2)


def test_ranks_of_replicas_divide_the_experts_of_all(spec: Path, tmp_path: Path) -> None:
    machine, ranks = machine_with(4, tmp_path), ("parallelism.tensor=2",)
    plain, divided, spread = (
        prepare(str(spec), each, machine, to_run=False).plan for each in ((), ranks, (*SPREAD, *ranks))
    )
    assert plain.model.experts is not None
    assert sizes(divided)["weights"] - sizes(spread)["weights"] > plain.model.experts.size_bytes // 8  # of 3, 2 or 1
    assert sizes(spread)["spread_rows"] > 0
    assert sizes(spread)["shared_activations"] > 0
    decided = {each.path: each.value for each in spread.decisions}
    assert (decided["parallel.experts_per_rank"], decided["parallel.steps_of_all"]) == (2, 2)
    assert decided["parallel.share"] < 0.5  # of all weights, and not of those of a replica


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("parallelism.tensor=4",), "2 replicas of 4 ranks cannot have the experts among them"),
        (("parallelism.pipeline=2",), "engines of one stage in this version, and 2 are asked for"),
        (("model.weight_update_paths=[/there]",), "do not change their weights together"),
        (("parallelism.enable_eplb=true",), "experts do not move between replicas"),
        (("hardware.kernels.kernel_set=torch",), "and not of torch"),
        (("model.enable_sleep_mode=true",), "replicas with experts among them do not sleep"),
        (("parallelism.data=64",), "63 ranks of all replicas can have the experts among them, and there are 64"),
        (("parallelism.data=7",), "7 replicas cannot have the experts among them"),
        (("parallelism.data_parallel_rank=0",), "which has 1 of 2"),
    ],
)
def test_what_is_not_there_is_refused_at_its_field(
    overrides: tuple[str, ...], message: str, spec: Path, tmp_path: Path
) -> None:
    with pytest.raises(SpecError) as refused:
        prepare(str(spec), (*SPREAD, *overrides), machine_with(64, tmp_path))
    assert message in " ".join(each.message for each in refused.value.diagnostics)


def test_adapters_may_change_what_every_replica_has(spec: Path) -> None:
    with pytest.raises(SpecError, match="cannot have these adapters: adapters may change its experts"):
        plan_of(spec, *SPREAD, "lora.max_rank=8", "lora.target_modules=[gate_proj]")
    plan = plan_of(spec, *SPREAD, "lora.max_rank=8", "lora.target_modules=[q_proj, v_proj]")
    assert plan.adapters is not None


def test_changes_are_not_rolling(spec: Path) -> None:
    change = PlanChange(path="cache.num_blocks", old=1, new=2)
    assert can_roll(plan_of(spec, "parallelism.data=2"), [change])
    assert not can_roll(plan_of(spec, *SPREAD), [change])
