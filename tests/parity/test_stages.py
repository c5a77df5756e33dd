"""A model whose layers are divided among stages gives what it gives whole, to the bit, for every family and mixer."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from appliance.kernels.interface import KernelSet
from appliance.models.describe import describe
from appliance.program.head_cuts import UncutError
from appliance.program.stages import Stage, even_layers, stage_program
from tests.models.tiny import FAMILIES, VARIANTS
from tests.parity.conftest import Checkpoint
from tests.parity.harness import Driver, bind, execution_of
from tests.parity.ranks import bind_stages, check_alike, check_equal

FOREIGN = {"gemma3n", "gemma4"}  # the last layers read the caches of others
NAMES = sorted((FAMILIES | VARIANTS).keys() - FOREIGN)
DIVIDED = {"gpt-oss", "deepseek3", "jamba"}  # stages of two ranks each


@pytest.mark.many_cases
@pytest.mark.parametrize("name", NAMES)
def test_stages_equal_one(name: str, tiny: Callable[[str], Checkpoint], kernel_set: KernelSet) -> None:
    facts, bounds = tiny(name).facts, execution_of(max_model_len=128, num_blocks=64, tokens=64)
    layers = even_layers(len(describe(facts, 128).spec.layers), 2)
    one = Driver(bind(facts, kernel_set, execution=bounds), bounds)
    two = Driver(bind_stages(facts, kernel_set, layers, 1, bounds), bounds)
    check_alike(one, two, np.testing.assert_array_equal)


@pytest.mark.parametrize("name", sorted(DIVIDED))
def test_stages_of_several_ranks_equal_one(name: str, tiny: Callable[[str], Checkpoint], sharing: KernelSet) -> None:
    facts, bounds = tiny(name).facts, execution_of(max_model_len=128, num_blocks=64, tokens=64)
    layers = even_layers(len(describe(facts, 128).spec.layers), 2)
    one = Driver(bind(facts, sharing, execution=bounds), bounds)
    four = Driver(bind_stages(facts, sharing, layers, 2, bounds), bounds)
    check_alike(one, four, partial(check_equal, sharing))


@pytest.mark.parametrize("name", sorted(FOREIGN))
def test_layers_that_read_another_stages_cache_are_refused(name: str, tiny: Callable[[str], Checkpoint]) -> None:
    compiled = describe(tiny(name).facts, 128)
    layers = even_layers(len(compiled.spec.layers), 2)
    with pytest.raises(UncutError, match="caches of layers in another stage"):
        stage_program(compiled.compiled.program, Stage(1, layers))


def test_the_last_stage_has_no_more_layers_than_others() -> None:
    assert even_layers(24, 2) == (12, 12)
    assert even_layers(9, 4) == (2, 2, 3, 2)
    assert even_layers(5, 3) == (2, 2, 1)
    with pytest.raises(UncutError, match="2 layers cannot be shared by 3 stages"):
        even_layers(2, 3)
