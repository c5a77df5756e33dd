"""Steps that are started early, on torch's CPU device, where they have ended when the call returns."""

import numpy as np
import pytest

from appliance.kernels.errors import StepError
from appliance.kernels.gpu.kernel_set import GpuExecutable, GpuKernelSet
from appliance.kernels.layout import Layout
from tests.kernels.harness import Graph, batch_step, execution_of, logits_of
from tests.kernels.test_ahead import FOLLOWING, PROMPTS, TABLES, decodes
from tests.kernels.test_program import VOCABULARY, decoder


@pytest.fixture
def executable() -> GpuExecutable:
    graph = Graph()
    program = decoder(graph, Layout.INT8)
    bound = GpuKernelSet("torch").bind(program, graph.weights, execution_of(64))
    bound.run(batch_step(PROMPTS, [0, 0, 0], TABLES, 16))
    return bound


def test_started_steps_are_the_steps(executable: GpuExecutable) -> None:
    want = [logits_of(executable, decodes(*tokens, position=at)) for at, tokens in enumerate(FOLLOWING, 15)]
    for at, tokens in enumerate(FOLLOWING, 15):
        inputs = decodes(*tokens, position=at)
        executable.start(inputs)
        before = executable.run(inputs)
        np.testing.assert_array_equal(np.stack([before.row(row) for row in range(3)]), want[at - 15])


def test_a_step_that_was_not_to_be_leaves_no_trace(executable: GpuExecutable) -> None:
    want = logits_of(executable, decodes(1, 2, 3))
    executable.start(decodes(40, 50, 60))
    np.testing.assert_array_equal(logits_of(executable, decodes(1, 2, 3)), want, "another one was run")
    inputs = decodes(1, 2, 3)
    executable.start(inputs)
    executable.cancel()
    executable.start(decodes(40, 50, 60))
    np.testing.assert_array_equal(logits_of(executable, inputs), want, "another one was started")


def test_blocks_that_are_copied_end_it(executable: GpuExecutable) -> None:
    inputs = decodes(1, 2, 3)
    executable.start(inputs)
    executable.copy_blocks([(30, 9)])
    found = logits_of(executable, inputs)
    np.testing.assert_array_equal(found, logits_of(executable, decodes(1, 2, 3)))
    assert not np.array_equal(found[0], found[1])


def test_bad_inputs_are_refused_at_once(executable: GpuExecutable) -> None:
    with pytest.raises(StepError, match="vocabulary"):
        executable.start(decodes(1, 2, VOCABULARY))


def test_a_cpu_begins_nothing_early(executable: GpuExecutable) -> None:
    assert executable.early_rows == 0
