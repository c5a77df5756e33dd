"""Steps that begin before they are planned: which ones may, and that the answers are the same."""

from dataclasses import replace
from itertools import count
from typing import cast

import numpy as np
import pytest

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.loop import EngineLoop
from appliance.engine.messages import AbortRequest, GenerateRequest
from appliance.engine.profiler import StepProfiler
from appliance.engine.runner import Runner
from appliance.engine.step import StepPlan, StepResult
from appliance.engine.validation import SamplingLimits
from appliance.kernels.interface import Eager, Executable, StepInputs
from appliance.kernels.logits import Logits
from tests.kernels.harness import batch_step

from .simulator import generate
from .test_runner import PROMPT, VOCAB, Engine, configure, crowd, drawn, greedy
from .tiny_program import tiny_executable


class Watched:
    """Counts steps that were started, run and cancelled; checks that a step runs with the numbers of its start."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self._started: tuple[StepInputs, list[np.ndarray]] | None = None
        self.early = self.late = self.given_up = 0
        self.early_rows = 4

    def __getattr__(self, name: str) -> object:
        return getattr(self._executable, name)

    def start(self, inputs: StepInputs) -> None:
        self._started = inputs, numbers(inputs)
        self._executable.start(inputs)

    def run(self, inputs: StepInputs) -> Logits:
        if self._started is None:
            self.late += 1
        else:
            started, before = self._started
            assert started.revision == inputs.revision
            for now, then in zip(numbers(inputs), before, strict=True):
                np.testing.assert_array_equal(now, then)
            self.early += 1
            self._started = None
        return self._executable.run(inputs)

    def cancel(self) -> None:
        self.given_up += self._started is not None
        self._started = None
        self._executable.cancel()


def numbers(inputs: StepInputs) -> list[np.ndarray]:
    arrays = (inputs.token_ids, inputs.positions, inputs.slot_mapping, inputs.query_start, inputs.seq_lens)
    past = () if inputs.past is None else (inputs.past.row, inputs.past.count)
    return [each.copy() for each in (*arrays, inputs.sampled_rows, *past)]


def watched(config: SchedulerConfig) -> Watched:
    return Watched(tiny_executable(config, kernel_set="cpu-generic", num_threads=2))


def engine_of(executable: Watched, config: SchedulerConfig | None = None) -> Engine:
    return Engine(config, executable=cast("Executable", executable))


def never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scheduler, "_goes_on", lambda self, step: False)


CONFIGS = {"roomy": configure(), "tight": configure(num_blocks=24), "tokenwise": configure(block_size=1)}


@pytest.mark.parametrize("name", list(CONFIGS))
def test_answers_are_those_of_steps_in_turn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CONFIGS[name]
    requests = [*crowd(), *[drawn(name=f"d{n}", seed=n) for n in range(6)], *[penalised(n) for n in range(4)]]
    executable = watched(config)
    executable.early_rows = 16
    early = engine_of(executable, config).run(*requests)
    assert executable.early >= 10
    never(monkeypatch)
    in_turn = Engine(config, executable=tiny_executable(config, kernel_set="cpu-generic")).run(*requests)
    for key in in_turn.outputs:
        assert early.tokens(*key) == in_turn.tokens(*key), key


def penalised(number: int) -> GenerateRequest:
    return generate(f"p{number}", [number, *PROMPT], 20, temperature=0.0, repetition_penalty=1.2)


def test_a_stream_begins_all_steps_early_but_the_first_two() -> None:
    executable = watched(configure())
    engine = engine_of(executable).run(greedy(max_tokens=30))
    assert len(engine.tokens()) == 30
    assert (executable.late, executable.early, executable.given_up) == (2, 28, 0)


def test_a_step_of_many_begins_in_its_turn() -> None:
    executable = watched(configure())
    engine_of(executable).run(*[drawn(name=f"d{n}", seed=n) for n in range(5)])
    assert executable.early == 0
    engine_of(executable).run(*[drawn(name=f"d{n}", seed=n) for n in range(4)])
    assert executable.early > 10


def test_nothing_begins_early_where_the_plan_says_so() -> None:
    config = configure()
    early, in_turn = watched(config), watched(config)
    first = engine_of(early).run(drawn(name="a", seed=1))
    second = engine_of(in_turn, replace(config, async_scheduling=False)).run(drawn(name="a", seed=1))
    assert early.early > 0
    assert (in_turn.early, in_turn.given_up) == (0, 0)
    assert first.tokens("a") == second.tokens("a")


def test_a_set_without_another_thread_begins_nothing_early() -> None:
    for num_threads, rows in ((1, 0), (2, 4)):
        executable = tiny_executable(configure(), kernel_set="cpu-generic", num_threads=num_threads)
        assert isinstance(executable, Eager)
        assert executable.early_rows == rows
    assert not isinstance(tiny_executable(configure()), Eager)


class Planner:
    """A scheduler whose steps all sample the same token."""

    def __init__(self, **changes: object) -> None:
        self.scheduler = Scheduler(configure(**changes))

    def add(self, name: str, length: int, max_tokens: int, **sampling: object) -> None:
        self.scheduler.add(b"", generate(name, list(range(1, length + 1)), max_tokens, **sampling))

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule()
        assert plan is not None
        self.scheduler.commit(plan, StepResult(plan.step, [[7] for chunk in plan.chunks if chunk.sample]))
        self.scheduler.check_invariants()
        return plan


def test_a_step_goes_on_until_the_last_token_but_one() -> None:
    planner = Planner()
    planner.add("r", 3, 4)
    assert [planner.step().goes_on for _ in range(4)] == [False, True, True, False]
    assert planner.scheduler.schedule() is None


def test_the_last_token_of_the_context_is_not_gone_beyond() -> None:
    planner = Planner(max_model_len=16)
    planner.add("r", 12, 50)
    assert [planner.step().goes_on for _ in range(4)] == [False, True, True, False]


def test_nothing_goes_on_that_a_waiting_one_can_join() -> None:
    planner = Planner(max_num_seqs=2)
    planner.add("a", 3, 20)
    planner.step()
    assert planner.step().goes_on
    planner.add("b", 3, 20)
    assert not planner.step().goes_on
    assert planner.step().goes_on
    planner.add("c", 3, 20)
    assert planner.step().goes_on, "no row is free"


def test_a_block_is_taken_a_step_ahead() -> None:
    planner = Planner(block_size=4)
    planner.add("r", 3, 20)
    planner.step()
    last_slot = planner.step()
    assert last_slot.chunks[0].start == 3
    assert [len(blocks) for blocks in last_slot.chunks[0].new_blocks] == [1]
    assert last_slot.goes_on
    assert [len(planner.step().chunks[0].new_blocks) for _ in range(5)] == [0, 0, 0, 1, 0]


def test_no_block_is_taken_ahead_that_others_need_now() -> None:
    planner = Planner(block_size=4, num_blocks=4)
    planner.add("a", 3, 9)
    planner.add("b", 3, 9)
    planner.step()
    first = planner.step()
    assert [chunk.new_blocks for chunk in first.chunks] == [(), ()]
    assert not first.goes_on
    while planner.scheduler.has_work:
        planner.step()
    assert planner.scheduler.stats(0.0).num_preemptions == 1


def loop_of(executable: Watched, clock: count | None = None) -> EngineLoop:
    config = configure()
    runner = Runner(cast("Executable", executable), config, VOCAB)
    ticks = clock or count()
    return EngineLoop(Scheduler(config), runner, SamplingLimits(4, 4), clock=lambda: float(next(ticks)))


def test_an_abort_ends_the_step_that_began_early() -> None:
    executable = watched(configure())
    loop = loop_of(executable)
    loop.handle(b"c", greedy(max_tokens=50))
    for _ in range(5):
        loop.step()
    assert executable.given_up == 0
    loop.handle(b"c", AbortRequest(["r"]))
    assert not loop.has_work
    assert executable.given_up == 1


def test_a_stop_token_ends_the_step_that_began_early() -> None:
    executable = watched(configure())
    loop = loop_of(executable)
    third = Engine().run(greedy()).tokens()[2]
    loop.handle(b"c", greedy(max_tokens=50, stop_token_ids=(third,)))
    while loop.has_work:
        loop.step()
    assert executable.given_up == 1


def test_a_step_that_began_early_lasted_since_the_one_before_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock advances by one at each read: twice in a step by the loop, and once for its statistics."""
    learnt: list[float] = []
    monkeypatch.setattr(Scheduler, "learn", lambda self, plan, seconds: learnt.append(seconds))
    loop = loop_of(watched(configure()))
    loop.handle(b"c", greedy(max_tokens=6))
    while loop.has_work:
        loop.step()
    assert learnt == [1.0, 1.0, 3.0, 3.0, 3.0, 3.0]


def test_phases_beside_a_step_that_runs_take_no_time_of_their_own() -> None:
    executable = tiny_executable(configure())
    ticks = count()
    profiler = StepProfiler(executable, 4, clock=lambda: float(next(ticks)))
    plan = StepPlan(1, (), (), (), (), 0)
    step = batch_step([[5]], [0], [[0]], 4)
    profiler.begin()
    profiler.lap("schedule")
    profiler.ran(step)
    profiler.lap("sample")
    profiler.started()
    profiler.lap("commit")
    profiler.end(plan)
    profiler.begin()
    profiler.lap("schedule")
    profiler.ran(step)
    profiler.end(plan)
    (steps,) = profiler.finish().kinds.values()
    assert set(steps.phases) == {"between", "schedule", "model", "sample", "report", "commit"}
    assert all(steps.phases[phase] == 1 for phase in ("between", "schedule", "sample", "report"))


def test_time_behind_a_step_that_was_given_up_is_not_the_models() -> None:
    ticks = count()
    profiler = StepProfiler(tiny_executable(configure()), 4, clock=lambda: float(next(ticks)))
    profiler.started()
    profiler.given_up()
    profiler.begin()
    profiler.ran(batch_step([[5]], [0], [[0]], 4))
    profiler.end(StepPlan(1, (), (), (), (), 0))
    (steps,) = profiler.finish().kinds.values()
    assert steps.phases["between"] == 1
