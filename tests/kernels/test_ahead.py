"""A step that is started early gives the same results as one that is not, or is cancelled without a trace."""

import numpy as np
import pytest

from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.errors import StepError
from appliance.kernels.interface import Executable, StepInputs
from appliance.kernels.layout import Layout
from tests.kernels.harness import Graph, batch_step, bind, execution_of, logits_of
from tests.kernels.test_program import VOCABULARY, decoder

TABLES = [[9, 3], [30, 1], [2, 4]]
PROMPTS = np.random.default_rng(1).integers(0, VOCABULARY, (3, 15)).tolist()


@pytest.fixture(params=[1, 2, 4], ids=["alone", "two threads", "four threads"])
def executable(request: pytest.FixtureRequest, native: CpuKernelSet) -> Executable:
    graph = Graph()
    program = decoder(graph, Layout.INT8)
    bounds = execution_of(64, quantize=True, num_threads=request.param)
    bound = bind(native, graph, program, bounds)
    bound.run(batch_step(PROMPTS, [0, 0, 0], TABLES, 16))
    return bound


def decodes(*tokens: int, position: int = 15) -> StepInputs:
    return batch_step([[token] for token in tokens], [position] * 3, TABLES, 16)


def test_started_steps_are_the_steps(executable: Executable) -> None:
    want = [logits_of(executable, decodes(*tokens, position=at)) for at, tokens in enumerate(FOLLOWING, 15)]
    for at, tokens in enumerate(FOLLOWING, 15):
        inputs = decodes(*tokens, position=at)
        executable.start(inputs)
        np.testing.assert_array_equal(logits_of(executable, inputs), want[at - 15])


FOLLOWING = np.random.default_rng(2).integers(0, VOCABULARY, (16, 3)).tolist()


def test_a_step_that_was_not_to_be_leaves_no_trace(executable: Executable) -> None:
    want = logits_of(executable, decodes(1, 2, 3))
    for _ in range(20):
        executable.start(decodes(40, 50, 60))
        executable.cancel()
    np.testing.assert_array_equal(logits_of(executable, decodes(1, 2, 3)), want)
    executable.start(decodes(40, 50, 60))
    np.testing.assert_array_equal(logits_of(executable, decodes(1, 2, 3)), want, "another one was run")
    executable.start(decodes(40, 50, 60))
    inputs = decodes(1, 2, 3)
    executable.start(inputs)
    np.testing.assert_array_equal(logits_of(executable, inputs), want, "another one was started")


def test_what_else_is_done_ends_it(executable: Executable) -> None:
    want = logits_of(executable, decodes(1, 2, 3))
    executable.start(decodes(40, 50, 60))
    executable.copy_blocks([(9, 7)])
    np.testing.assert_array_equal(logits_of(executable, decodes(1, 2, 3)), want)
    executable.start(decodes(40, 50, 60))
    executable.close()


def test_bad_inputs_are_refused_at_once(executable: Executable) -> None:
    want = logits_of(executable, decodes(1, 2, 3))
    with pytest.raises(StepError, match="vocabulary"):
        executable.start(decodes(1, 2, VOCABULARY))
    np.testing.assert_array_equal(logits_of(executable, decodes(1, 2, 3)), want)


def test_seconds_are_those_of_steps_that_were_run(executable: Executable) -> None:
    seconds = np.zeros(len(executable.operator_work()))
    executable.time_operators(seconds)
    executable.start(decodes(40, 50, 60))
    executable.cancel()
    assert not seconds.any()
    inputs = decodes(1, 2, 3)
    executable.start(inputs)
    executable.run(inputs)
    assert np.count_nonzero(seconds) > len(seconds) / 2
    executable.start(inputs)
    executable.time_operators(None)
    before = seconds.copy()
    executable.run(inputs)
    np.testing.assert_array_equal(seconds, before)
