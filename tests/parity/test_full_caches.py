"""Caches that keep what windows have left: the same answers, to the bit, of one group of block tables."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from appliance.kernels.binding import load_kernel_set
from appliance.models.describe import describe
from appliance.models.windows import KEEP_ALL
from appliance.plan.overrides import with_config_overrides
from appliance.program.kv_blocks import blocks_held
from tests.engine.test_speculation import summary
from tests.parity.conftest import Checkpoint
from tests.parity.harness import bind, execution_of
from tests.parity.test_swapping import Run, tight

# Windows in each layer or in some; with sinks and experts; where windows alone rotate; layers without caches; chunks.
NAMES = ["mistral", "gemma2", "gpt-oss", "exaone4", "gemma4", "llama4"]


def keeping(checkpoint: Checkpoint) -> Checkpoint:
    return replace(checkpoint, facts=with_config_overrides(checkpoint.facts, {KEEP_ALL: True}))


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_of_windows_that_give_blocks_back(name: str, tiny: Callable[[str], Checkpoint]) -> None:
    """So few blocks that sequences are preempted, with prompts that share a beginning, beyond every window."""
    runs = []
    for checkpoint in (tiny(name), keeping(tiny(name))):
        program = describe(checkpoint.facts, 128).compiled.program
        bounds = execution_of(sampled=64)
        executable = bind(checkpoint.facts, load_kernel_set("cpu-generic"), execution=bounds)
        config = replace(tight(checkpoint, executable, bounds), num_swap_places=0)
        assert config.windows == program.kv_layout().windows
        runs.append((config, Run(config, executable)))
    (windowed, with_windows), (full, without) = runs
    assert any(window is not None for window in windowed.windows)
    assert full.windows == (None,)
    assert summary(without.answers) == summary(with_windows.answers)
    assert without.scheduler.stats(0.0).num_preemptions > 0
    assert blocks_held(full.windows, full.block_size, 64) == 64 // full.block_size
