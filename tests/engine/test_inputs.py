"""Inputs that are advanced in place equal those that are built again in each step."""

from dataclasses import fields
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from appliance.engine.inputs import InputBuilder, LogitRows
from appliance.engine.messages import SamplingParams
from appliance.engine.rows import Rows
from appliance.engine.step import Chunk, NewRow, StepPlan
from appliance.kernels.interface import StepInputs
from appliance.kernels.logits import HostLogits, Logits
from appliance.kernels.sampling import SampledBatch, SamplingBatch

from .test_runner import VOCAB, Engine, configure, crowd, drawn, greedy
from .tiny_program import tiny_executable

if TYPE_CHECKING:
    from appliance.kernels.reference.kernel_set import ReferenceExecutable

ARRAYS = [each.name for each in fields(StepInputs) if each.name not in ("block_tables", "past", "follows", "revision")]


class Checked(InputBuilder):
    """Builds each step twice, and counts the steps that were advanced in place."""

    moved = 0
    entered = 0  # blocks that were begun meanwhile

    def go_on(self, plan: StepPlan) -> tuple[StepInputs, LogitRows] | None:
        going_on = super().go_on(plan)
        if going_on is None:
            return None
        inputs, wanted = going_on
        Checked.moved += 1
        Checked.entered += sum(len(blocks) for chunk in plan.chunks for blocks in chunk.new_blocks)
        anew, also = InputBuilder(self._rows, self._block_size, 256, 16, self._few_logits).build(plan)
        for name in ARRAYS:
            np.testing.assert_array_equal(getattr(inputs, name), getattr(anew, name), name)
        for name in ("tokens", "rows", "given", "num_sampled"):
            np.testing.assert_array_equal(getattr(wanted, name), getattr(also, name), name)
        for row, length in enumerate(inputs.seq_lens):
            blocks = -(-length // self._block_size)
            np.testing.assert_array_equal(inputs.block_tables[:, row, :blocks], anew.block_tables[:, row, :blocks])
        assert (inputs.past is None) == (anew.past is None)
        if inputs.past is not None and anew.past is not None:
            np.testing.assert_array_equal(inputs.past.count, anew.past.count)
            np.testing.assert_array_equal(inputs.past.row, anew.past.row)
        return going_on


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> type[Checked]:
    monkeypatch.setattr("appliance.engine.runner.InputBuilder", Checked)
    Checked.moved = Checked.entered = 0
    return Checked


def test_a_crowd_that_comes_and_goes(checked: type[Checked]) -> None:
    Engine(configure(num_blocks=24)).run(*crowd(), *[drawn(name=f"d{n}") for n in range(6)])
    assert checked.moved > 20
    assert checked.entered > 5


def test_penalised_rows_whose_largest_logits_are_asked(checked: type[Checked]) -> None:
    screened = tiny_executable(configure(), kernel_set="cpu-generic", screen_logits=True)
    answer = Engine(executable=screened).run(greedy(max_tokens=30, repetition_penalty=1.3)).tokens()
    assert checked.moved == len(answer) - 2  # all but the prompt's step and the first after it
    assert checked.entered == 6  # of positions 16 to 39: that of 12 was taken ahead, by the first


def test_a_table_that_is_outgrown_is_made_anew(checked: type[Checked]) -> None:
    Engine().run(greedy(max_tokens=60))
    assert 0 < checked.moved < 58  # 60 tokens are 15 blocks; a table has room for 8 more than it needs


def test_a_row_that_wants_its_prompt_is_not_taken_for_one_that_goes_on(checked: type[Checked]) -> None:
    Engine().run(greedy([5], prompt_logprobs=0), drawn([7, 8], name="other"))
    assert checked.moved > 0


def test_what_follows_runs_the_tokens_that_were_just_sampled() -> None:
    executable = cast("ReferenceExecutable", tiny_executable(configure()))
    engine = Engine(configure(num_blocks=24), executable=executable)
    run, sample = executable.run, executable.sample
    sampled: list[list[int]] = [[]]
    told: list[bool] = []

    def checked_run(inputs: StepInputs) -> HostLogits:
        if inputs.follows:
            assert inputs.token_ids.tolist() == sampled[-1]
        told.append(inputs.follows)
        return run(inputs)

    def kept_sample(logits: Logits, batch: SamplingBatch) -> SampledBatch:
        result = sample(logits, batch)
        sampled.append(result.token_ids.tolist())
        return result

    executable.run, executable.sample = checked_run, kept_sample  # type: ignore[method-assign]
    engine.run(*crowd(), *[drawn(name=f"d{n}", seed=n) for n in range(6)])
    assert told.count(True) > 20
    assert told[0] is False


def step_of(*chunks: Chunk) -> StepPlan:
    return StepPlan(1, (), (), (), chunks, sum(chunk.length for chunk in chunks))


def decode(row: int, start: int, *, sample: bool = True) -> Chunk:
    return Chunk(row, start, 1, start, (), sample, is_decode=True)


NEXT = [decode(0, 6), decode(1, 4)]


@pytest.mark.parametrize(
    ("chunks", "goes_on"),
    [
        (NEXT, True),
        (NEXT[:1], False),
        ([NEXT[0], decode(2, 4)], False),
        ([NEXT[0], decode(1, 5)], False),
        ([NEXT[0], decode(1, 4, sample=False)], False),
        ([NEXT[0], Chunk(1, 4, 2, 4, (), True, is_decode=True)], False),
    ],
    ids=["next", "one ended", "another row", "a token between", "more is known", "two tokens"],
)
def test_what_goes_on(chunks: list[Chunk], goes_on: bool) -> None:
    builder, _ = three_rows()
    builder.build(step_of(decode(0, 5), decode(1, 3)))
    assert (builder.go_on(step_of(*chunks)) is not None) == goes_on


def test_a_row_in_other_hands_does_not_go_on() -> None:
    builder, rows = three_rows()
    builder.build(step_of(decode(0, 5), decode(1, 3)))
    rows.put(new_row(1))
    assert builder.go_on(step_of(*NEXT)) is None


def three_rows() -> tuple[InputBuilder, Rows]:
    rows = Rows(4, 64, 4, VOCAB)
    for row in range(3):
        rows.put(new_row(row))
    return InputBuilder(rows, 4, 256, 4), rows


def new_row(row: int) -> NewRow:
    return NewRow(row, 0, [1, 2, 3], 3, SamplingParams(), (), 0, None)
