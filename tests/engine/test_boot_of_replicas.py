"""The start of replicas that have experts among them: whoever has loaded first waits for the others, however long."""

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from appliance.engine.boot import boot
from appliance.engine.replica import as_replica
from appliance.kernels.lockstep import Lockstep
from appliance.kernels.ranks import SharedMemory
from appliance.plan.prepare import prepare
from tests.e2e.served import make_random_adapter, make_random_mixture, make_random_model

SPEC = """
api_version: appliance/v1
kind: Deployment
name: spread
model: {{source: {folder}/model, max_model_len: 128}}
cache: {{num_blocks: 64}}
hardware: {{num_threads: 1}}
parallelism: {{data: 2, expert: true}}
lora: {{adapters: [{{name: a, source: {folder}/adapter}}]}}
"""
PATIENCE_S = 0.5  # in a round; the second replica takes longer to load


def make_attention_adapter(folder: Path) -> None:
    """Writes an adapter that changes no expert."""
    make_random_adapter(folder, seed=1)
    tensors = load_file(folder / "adapter_model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "self_attn" in name}
    save_file(kept, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "adapter_config.json").read_text())
    config["target_modules"] = ["q_proj", "k_proj", "v_proj", "o_proj"]
    (folder / "adapter_config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spread")
    for name, make in (("model", make_random_mixture), ("draft", make_random_model)):
        (folder / name).mkdir()
        make(folder / name)
    make_attention_adapter(folder / "adapter")
    (folder / "spec.yaml").write_text(SPEC.format(folder=folder))
    return folder / "spec.yaml"


@pytest.fixture
def shared() -> Iterator[tuple[SharedMemory, list[int]]]:
    memory, wakes = SharedMemory(), [os.eventfd(0) for _ in range(2)]
    yield memory, wakes
    memory.close()
    for each in wakes:
        os.close(each)


@pytest.mark.parametrize("drafts", [False, True], ids=["", "draft model"])
def test_adapters_are_checked_when_all_have_loaded(
    drafts: bool, spec: Path, shared: tuple[SharedMemory, list[int]]
) -> None:
    """A draft model is whole in each, and runs no step of all."""
    draft = (f"speculative.model={spec.parent / 'draft'}", "speculative.num_tokens=2") if drafts else ()
    plan, there = prepare(spec, draft).plan, set[int]()
    memory, wakes = shared

    def run(number: int) -> list[str]:
        """Takes part in the others' rounds until all are there, as an engine that serves does."""
        time.sleep(3 * PATIENCE_S * number)
        lockstep = Lockstep(memory, number, 2, PATIENCE_S, wakes)
        loop = boot(as_replica(plan, number), lambda phase: None, lockstep=lockstep)
        there.add(number)
        while len(there) < 2:
            lockstep.ranks.check()
            loop.step() if loop.has_work else time.sleep(0.001)
        served = [each.adapter.name for each in loop.adapters_served().adapters if each.is_verified]
        loop.close()
        return served

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(run, range(2))) == [["a"], ["a"]]
