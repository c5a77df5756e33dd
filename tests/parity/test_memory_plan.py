"""The memory plan against what the native set allocates: weights, cache, activations and workspace, within 10 %."""

from collections.abc import Callable
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as GgmlType

from appliance.engine.backend import load_backend
from appliance.engine.core.config import SchedulerConfig
from appliance.plan.prepare import prepare
from tests.models.tiny import FAMILIES
from tests.parity.conftest import Checkpoint, Write, kernel_set_names

SPEC = """
api_version: appliance/v1
kind: Deployment
name: tiny
model: {{source: {source}, max_model_len: 64, skip_tokenizer_init: true}}
hardware: {{memory: {{kv_cache: 1MiB}}}}
"""

pytestmark = pytest.mark.skipif(len(kernel_set_names()) < 2, reason="no native kernel set is built here")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_plain_checkpoint_takes_the_planned_bytes(
    name: str, tiny: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    check(tiny(name).folder, tmp_path)


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_a_quantized_checkpoint_takes_the_planned_bytes(kind: str, written: Write, tmp_path: Path) -> None:
    check(written("llama", kind, lambda _: GgmlType[kind]).path, tmp_path)


def check(source: Path, folder: Path) -> None:
    spec = folder / "deployment.yaml"
    spec.write_text(SPEC.format(source=source))
    plan = prepare(spec).plan
    backend = load_backend(plan, SchedulerConfig.from_plan(plan), lambda *_: None)
    planned = {item.name: item.size_bytes for item in plan.memory[0].items}
    for purpose, size in backend.executable.memory_bytes.items():
        assert size == pytest.approx(planned[purpose], rel=0.1, abs=4096), purpose
    backend.executable.close()
