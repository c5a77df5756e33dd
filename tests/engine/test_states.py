"""Recurrent states: prompts begin from snapshots, and no schedule changes an answer."""

import numpy as np
import pytest

from appliance.engine.core.snapshots import Snapshots
from appliance.engine.messages import ErrorKind, GenerateRequest
from appliance.engine.states import state_pieces
from appliance.engine.step import Chunk, StateMoves
from appliance.kernels.errors import StepError
from appliance.kernels.interface import Executable, StepInputs

from .simulator import Harness, generate
from .test_runner import Engine, configure
from .test_scheduler import harness, prompt
from .tiny_program import tiny_executable


def run_all(run: Harness, *requests: GenerateRequest) -> list[int]:
    """Runs the requests one after the other; returns how many tokens of each prompt were cached."""
    for request in requests:
        run.scheduler.add(b"", request)
        run.run()
    return [run.outputs[request.request_id, 0][0].num_cached_tokens for request in requests]


def test_a_prompt_begins_after_the_last_whole_block_of_an_equal_one() -> None:
    """The last token is always computed: of 24 tokens in blocks of four, five blocks are skipped."""
    run = harness(num_snapshots=4)
    assert run_all(run, generate("a", prompt(22), 3), generate("b", prompt(22), 3)) == [0, 20]
    assert run_all(run, generate("c", prompt(24), 3), generate("d", prompt(24), 3)) == [20, 20]


def test_prompts_that_part_leave_a_snapshot_where_they_do() -> None:
    """The second one finds no snapshot where it leaves the first, and leaves one there for the third."""
    run = harness(num_snapshots=4)
    prompts = [prompt(16) + [last] * 9 for last in (91, 92, 93)]
    assert run_all(run, *(generate(f"r{at}", each, 2) for at, each in enumerate(prompts))) == [0, 0, 16]


@pytest.mark.parametrize("windows", [(None,), (6, None), ()], ids=["full", "windows", "states alone"])
def test_an_answer_and_more_go_on_from_the_prompt_before(windows: tuple[int | None, ...]) -> None:
    run = harness(num_snapshots=4, windows=windows, num_blocks=64 if windows else 0)
    run_all(run, generate("a", prompt(21), 6))
    assert run_all(run, generate("b", prompt(21) + run.tokens("a") + [7] * 5, 2)) == [20]


def test_siblings_begin_from_the_snapshot_of_the_first() -> None:
    run = harness(num_snapshots=4)
    run.scheduler.add(b"", generate("r", prompt(22), 5, n=3, seed=1))
    run.run()
    assert sum(plan.num_tokens for plan in run.steps) == 22 + 2 * 2 + 3 * 4  # 2 of 22 tokens follow the snapshot
    for index in range(3):
        alone = harness(num_snapshots=0)
        alone.scheduler.add(b"", generate("r", prompt(22), 5, n=3, seed=1))
        alone.run()
        assert run.tokens("r", index) == alone.tokens("r", index)


def test_equal_prompts_at_once_are_computed_once() -> None:
    run = harness(num_snapshots=4)
    for name in "abc":
        run.scheduler.add(b"", generate(name, prompt(22), 1))
    run.run()
    assert [run.outputs[name, 0][0].num_cached_tokens for name in "abc"] == [0, 20, 20]


def test_the_snapshot_that_was_not_used_for_longest_makes_room() -> None:
    run = harness(num_snapshots=2)
    a, b, c = (generate(name, prompt(10, first=ord(name)), 1) for name in "abc")
    assert run_all(run, a, b) == [0, 0]
    assert run_all(run, generate("a2", a.prompt_token_ids, 1), c) == [8, 0]
    assert run_all(run, generate("b2", b.prompt_token_ids, 1)) == [0]
    assert run_all(run, generate("c2", c.prompt_token_ids, 1)) == [8]


def test_a_broken_sequence_leaves_no_snapshot() -> None:
    run = harness(num_snapshots=4)
    run.scheduler.add(b"", generate("bad", prompt(22), 10))
    run.runner.broken.add(0)
    run.step()
    run.runner.broken.clear()
    assert run_all(run, generate("next", prompt(22), 1)) == [0]


def test_an_emptied_cache_has_no_snapshots() -> None:
    run = harness(num_snapshots=4)
    run_all(run, generate("a", prompt(22), 1))
    assert run.scheduler.stats(0.0).num_snapshots_kept == 1
    assert run.scheduler.kv.reset()
    assert run.scheduler.stats(0.0).num_snapshots_kept == 0
    assert run_all(run, generate("b", prompt(22), 1)) == [0]


def test_pieces_of_a_step() -> None:
    """A fresh chunk that leaves two snapshots, the second at its end; one that resumes; one that goes on."""
    chunks = (
        Chunk(3, 0, 8, 0, (), sample=False, states=StateMoves(None, ((4, 20), (8, 21)))),
        Chunk(1, 4, 3, 4, (), sample=True, states=StateMoves(22, ())),
        Chunk(0, 9, 1, 9, (), sample=True),
    )
    rows, starts = np.array([3, 1, 0], np.int32), np.array([0, 4, 9], np.int32)
    pieces = state_pieces(chunks, rows, starts, np.array([0, 8, 11, 12], np.int32))
    assert pieces.first.tolist() == [0, 3, 4, 5]
    assert pieces.start.tolist() == [0, 4, 8, 8, 11, 12]
    assert pieces.source.tolist() == [-1, 20, 21, 22, 0]
    assert pieces.target.tolist() == [20, 21, 3, 1, 0]


CROWD = [
    generate("a", [*range(2, 30)], 20, seed=1),
    generate("b", [*range(2, 20), 50, 51, 52], 20, seed=2, n=2),
    generate("c", [*range(2, 20), 53, 54], 20, seed=3),
    generate("d", [9, 8, 7], 20, seed=4),
]


@pytest.mark.parametrize(
    ("num_snapshots", "tight"),
    [(6, False), (0, True), (1, True), (6, True)],
    ids=["roomy", "no-snapshots", "one-snapshot", "preempted"],
)
def test_a_real_model_answers_alike_from_snapshots_in_chunks_and_after_preemption(
    num_snapshots: int, tight: bool
) -> None:
    alone = Engine(configure(num_snapshots=0))
    expected = {(request.request_id, 0): alone.run(request).tokens(request.request_id) for request in CROWD}
    sizes = {"num_blocks": 14, "max_num_batched_tokens": 7, "max_num_seqs": 4, "expected_output": 0}
    changes: dict[str, object] = sizes if tight else {}
    engine = Engine(configure(num_snapshots=num_snapshots, **changes))
    engine.run(*CROWD)
    assert {key: engine.tokens(*key) for key in expected} == expected
    if tight:
        assert engine.scheduler.stats(0.0).num_preemptions
    assert engine.run(CROWD[0]).tokens("a") == expected["a", 0]


class Picky:
    """Refuses steps in which a sequence begins with a token of its choice."""

    def __init__(self, inner: Executable, token: int) -> None:
        self._inner = inner
        self._token = token

    def run(self, inputs: StepInputs) -> object:
        if (inputs.token_ids[inputs.positions == 0] == self._token).any():
            raise StepError("a token is refused")
        return self._inner.run(inputs)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def test_looking_for_the_row_to_blame_changes_no_state() -> None:
    """The rows beside it run alone while it is looked for, and then again."""
    config = configure(num_snapshots=2)
    alone = Engine(config).run(CROWD[0]).tokens("a")
    engine = Engine(config, executable=Picky(tiny_executable(config), 60))  # type: ignore[arg-type] # stands in
    engine.scheduler.add(b"", CROWD[0])
    for _ in range(3):
        plan = engine.scheduler.schedule()
        assert plan is not None
        engine.scheduler.commit(plan, engine.runner.run(plan))
    engine.run(generate("bad", [60, 61], 4))
    assert engine.outputs["bad", 0][-1].error_kind is ErrorKind.INTERNAL
    assert engine.tokens("a") == alone[3:]


def test_what_a_plan_reads_it_does_not_overwrite() -> None:
    snapshots = Snapshots(1, first_slot=5)
    assert snapshots.write(11) == 5
    assert not snapshots.has(11)
    assert snapshots.is_coming(11)
    snapshots.settle()
    assert snapshots.read(11) == 5
    assert snapshots.write(12) is None
    snapshots.settle()
    assert snapshots.write(12) == 5
    assert not snapshots.has(11)
