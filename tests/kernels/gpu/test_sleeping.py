"""A set that gives its memory back: storages are empty while it sleeps, and it says the same afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from appliance.catalog.formats import WeightForm
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.read import read_model_facts
from appliance.checkpoint.reader import open_tensors
from appliance.kernels.gpu.kernel_set import GpuExecutable, GpuKernelSet
from appliance.kernels.gpu.sleeping import storages_of, tensors_of
from appliance.loading.inventory import take_inventory
from appliance.loading.weights import DecoderWeights
from appliance.models.describe import describe
from appliance.plan.types import PrecisionPlan
from tests.models.tiny import VOCAB_SIZE, make_tiny
from tests.parity.harness import Driver, bind, execution_of, precision

PROMPT = [int(token) for token in np.random.default_rng(5).integers(3, VOCAB_SIZE, 9)]
LIMITS = execution_of(max_model_len=64, block_size=16)


def logits(executable: GpuExecutable) -> np.ndarray:
    driver = Driver(executable, LIMITS)
    row = driver.sequence(PROMPT)
    found = [driver.step([(row, end - row.num_computed)])[0] for end in (4, 8)]
    return np.concatenate(found)


@contextmanager
def weights_of(facts: ModelFacts, plan: PrecisionPlan) -> Iterator[DecoderWeights]:
    described = describe(facts, LIMITS.limits.max_model_len)
    inventory = take_inventory(described, facts, plan)
    compiled = described.stored_as({name: item.form for name, item in inventory.items()}).compiled
    with open_tensors(facts) as reader:
        yield DecoderWeights(compiled, inventory, reader, LIMITS.limits.max_model_len)


@pytest.mark.parametrize("keep_weights", [True, False])
@pytest.mark.parametrize("family", ["llama", "gpt-oss", "qwen3_next"])
def test_it_says_the_same_after_a_sleep(family: str, keep_weights: bool, tmp_path: Path) -> None:
    make_tiny(family, tmp_path)
    facts = read_model_facts(tmp_path)
    plan = precision(facts, quantize=WeightForm("int8", group_size=16)) if family == "llama" else precision(facts)
    executable = bind(facts, GpuKernelSet("torch"), plan, LIMITS)
    assert isinstance(executable, GpuExecutable)
    before = logits(executable)
    held = [executable._matrices, executable._vectors, executable._caches.lanes]
    awake = sum(storage.nbytes() for storage in storages_of(tensors_of(held)))
    assert awake > 0
    executable.sleep(keep_weights=keep_weights)
    assert storages_of([*tensors_of(held), *executable._states]) == []
    executable.wake_caches()
    if keep_weights:
        executable.wake_weights(None)
    else:
        with weights_of(facts, plan) as weights:
            executable.wake_weights(weights)
    assert sum(storage.nbytes() for storage in storages_of(tensors_of(held))) == awake
    np.testing.assert_array_equal(logits(executable), before)
