"""A second start takes the weights that the first one packed, and gives the same logits."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from gguf import GGMLQuantizationType as GgmlType

from appliance.checkpoint.read import read_model_facts
from appliance.engine.backend import Backend, load_backend
from appliance.engine.core.config import SchedulerConfig
from appliance.kernels.interface import StatePieces, StepInputs
from appliance.kernels.reports import WeightsReport
from appliance.loading.shard_writing import write_by_rank
from appliance.plan.boot import BootReport, compare_boot
from appliance.plan.prepare import prepare
from appliance.plan.types import EnginePlan
from tests.kernels.harness import logits_of
from tests.models.tiny import FAMILIES
from tests.parity.conftest import Checkpoint, Write, kernel_set_names
from tests.parity.harness import CACHE, by_group, cache_of
from tests.parity.test_memory_plan import SPEC

pytestmark = pytest.mark.skipif(len(kernel_set_names()) < 2, reason="no native kernel set is built here")


@pytest.fixture(autouse=True)
def small_models_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("appliance.loading.model.MIN_BYTES", 0)
    monkeypatch.setattr("appliance.loading.model.SPARE_BYTES", 0)
    monkeypatch.setenv("APPLIANCE_CACHE", str(tmp_path / "cache"))


def planned(source: Path, folder: Path, loading: str = "{}", cache: tuple[str, ...] = (CACHE,)) -> EnginePlan:
    spec = folder / "deployment.yaml"
    spec.write_text(SPEC.format(source=source, quantization="auto") + f"loading: {loading}\n")
    return prepare(spec, cache).plan


def start(plan: EnginePlan) -> Backend:
    backend = load_backend(plan, SchedulerConfig.from_plan(plan), lambda *_: None)
    for thread in threading.enumerate():
        if thread.name == "keep-weights":
            thread.join()
    return backend


def start_and_run(plan: EnginePlan) -> tuple[np.ndarray, WeightsReport]:
    backend = start(plan)
    count = 8
    every = np.arange(count, dtype=np.int32)
    blocks, size = np.arange(8, dtype=np.int32), np.int32(plan.cache.block_size)
    slots = by_group(blocks[every // size]) * size + every % size
    bounds = np.array([0, count], np.int32)
    pieces = StatePieces(bounds.clip(max=1), bounds, np.array([-1], np.int32), np.array([0], np.int32))
    states = None if plan.cache.num_snapshots is None else pieces
    step = StepInputs(every + 3, every, slots, bounds, bounds[1:], by_group(blocks[None]), every, states=states)
    logits = logits_of(backend.executable, step)
    backend.executable.close()
    assert backend.weights is not None
    return logits, backend.weights


def check_starts(plan: EnginePlan) -> None:
    first, packed = start_and_run(plan)
    assert (packed.origin, plan.loading.packed_access) == ("checkpoint", "map")
    copying = msgspec.structs.replace(plan, loading=msgspec.structs.replace(plan.loading, packed_access="copy"))
    for again in (plan, copying):
        logits, adopted = start_and_run(again)
        assert adopted.origin == "cache"
        assert packed.size_bytes == adopted.size_bytes
        np.testing.assert_array_equal(first, logits)


def test_weights_that_were_written_by_rank(tiny: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    """They are packed again when a file of them was written again."""
    checkpoint, state = tiny("llama"), tmp_path / "state"
    write_by_rank(planned(checkpoint.folder, tmp_path), checkpoint.facts, state, lambda *_: None)
    plan = planned(state, tmp_path)
    assert plan.model.format == "sharded_state"
    check_starts(plan)
    os.utime(state / "model-rank-0-part-0.safetensors", ns=(1, 1))
    assert start_and_run(plan)[1].origin == "checkpoint"


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(name: str, tiny: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    check_starts(planned(tiny(name).folder, tmp_path, cache=cache_of(name)))


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q4_K", "Q6_K"])
def test_every_kind_of_block(kind: str, written: Write, tmp_path: Path) -> None:
    check_starts(planned(written("llama", kind, lambda _: GgmlType[kind]).path, tmp_path))


def test_adopted_weights_take_the_planned_bytes(tiny: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    plan = planned(tiny("llama").folder, tmp_path)
    start_and_run(plan)
    backend = start(plan)
    measured = dict(backend.executable.memory_bytes)
    backend.executable.close()
    rows = {row.name: row for row in compare_boot(plan, BootReport(seconds={}, memory_bytes=measured, num_blocks=0))}
    assert rows["weights"].planned_bytes == rows["weights"].measured_bytes


def test_the_spec_says_whether_and_where(tiny: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    source = tiny("llama").folder
    for _ in range(2):
        assert start_and_run(planned(source, tmp_path, "{keep_packed: false}"))[1].origin == "checkpoint"
    assert not (tmp_path / "cache" / "packed").exists()
    _, report = start_and_run(planned(source, tmp_path, "{packed_dir: ./here}"))
    assert Path(report.file).parent == tmp_path / "here"
    assert Path(report.file).is_file()
    _, report = start_and_run(planned(source, tmp_path, "{packed_dir: ./small, packed_size: 1KiB}"))
    assert not Path(report.file).exists()


def test_other_weights_or_another_plan_are_packed_anew(tiny: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in tiny("llama").folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    plan = planned(folder, tmp_path)
    before, _ = start_and_run(plan)
    [weights] = folder.glob("*.safetensors")
    data = bytearray(weights.read_bytes())
    data[-64:] = bytes(64)  # the header stays as it is
    weights.write_bytes(data)
    assert read_model_facts(folder).header_sha256 == plan.model.header_sha256
    after, report = start_and_run(plan)
    assert report.origin == "checkpoint"
    assert not np.array_equal(before, after)
    longer = msgspec.structs.replace(plan, model=msgspec.structs.replace(plan.model, max_model_len=32))
    assert start_and_run(longer)[1].origin == "checkpoint"  # its rotary table has other rows
