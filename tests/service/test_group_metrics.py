"""The use of the KV cache by group of layers."""

from pathlib import Path

import msgspec

from appliance.engine.messages import EngineStats
from appliance.plan.types import KvGroupPlan, MemoryPlan
from appliance.service.metrics import ServiceMetrics
from tests.engine.plans import scripted_plan

NAME = "appliance_kv_cache_group_usage_ratio"


def shares(metrics: ServiceMetrics) -> dict[tuple[str, str], float]:
    found = [family for family in metrics.collector.collect() if family.name == NAME]
    return {(each.labels["group"], each.labels["window"]): each.value for family in found for each in family.samples}


def group(number: int, window: int | None) -> KvGroupPlan:
    return KvGroupPlan(
        group=number, num_layers=1, num_kv_heads=1, head_dim=8, window=window, bytes_per_token=64, value_dim=8
    )


def test_each_group_of_the_plan_has_its_share(tmp_path: Path) -> None:
    groups = (group(0, 512), group(1, None), group(1, None))  # layers of one group differ in shape
    memory = MemoryPlan(
        device="cpu", budget_bytes=1, items=(), kv_bytes_per_token=1, kv_bytes_per_block=1, kv_groups=groups,
        num_tokens=1, num_full_sequences=1.0,
    )  # fmt: skip
    metrics = ServiceMetrics("m")
    metrics.describe(msgspec.structs.replace(scripted_plan(tmp_path), memory=(memory,)))
    values = dict.fromkeys(EngineStats.__struct_fields__, 0)
    stats = {**values, "step_sizes": (), "num_blocks_total": 64, "blocks_used_by_group": (16, 32)}
    metrics.of_engine().note(
        msgspec.convert(
            stats
            | dict.fromkeys(("speculation", "adapters", "swap", "graphs", "sleep", "weights", "experts", "pause")),
            EngineStats,
        )
    )
    assert shares(metrics) == {("0", "512"): 0.25, ("1", "full"): 0.5}
    metrics.of_engine().engine_gone()
    assert shares(metrics) == {("0", "512"): 0.0, ("1", "full"): 0.0}
    metrics.describe(scripted_plan(tmp_path))
    assert shares(metrics) == {}
