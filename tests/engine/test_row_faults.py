"""An exception in the work on one row fails that row alone: tokens, blocks and rows of others are as without it."""

from collections.abc import Callable, Collection
from typing import Any

import msgspec
import numpy as np
import pytest

from appliance.engine.core.adapter_slots import ServedAdapter
from appliance.engine.core.results import ResultTaker
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.core.sequence import Sequence
from appliance.engine.inputs import BatchBuilder, InputBuilder, LogitRows
from appliance.engine.loop import EngineLoop
from appliance.engine.messages import ErrorKind, FinishReason, GenerateRequest, OutputBatch, SequenceOutput
from appliance.engine.moving import MovingInputs
from appliance.engine.processors import RowProcessors
from appliance.engine.rows import Rows
from appliance.engine.runner import Runner
from appliance.engine.step import NewRow, StepPlan
from appliance.engine.validation import SamplingLimits
from appliance.kernels.errors import StepError
from appliance.kernels.interface import Executable, StepInputs
from appliance.kernels.logits import Logits
from appliance.kernels.sampling import SampledBatch, SamplingBatch

from .simulator import generate
from .test_runner import VOCAB, configure, drawn, greedy
from .tiny_program import tiny_executable

MARK = 63  # the victim's prompt alone begins with it
SHARED = [5, 9, 33, 41, 2, 60, 17, 8]


class InjectedError(Exception):
    """The error that is raised wherever the victim's row is used."""


class Victim:
    """Keeps the current row of the victim."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self.row: int | None = None
        self.steps = 0  # since it has its row
        self.raised = 0

    def look(self, rows: Collection[int]) -> None:
        """Raises when the victim is among them, from its third step on."""
        if self.row in rows and self.steps >= 3:
            self.fail()

    def fail(self) -> None:
        self.raised += 1
        raise InjectedError("a secret of the machine")


Patch = Callable[[pytest.MonkeyPatch, Victim], None]


def wrapped(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, before: Callable[..., None]) -> None:
    """Returns a function that calls before(*arguments) and then the original."""
    original = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        before(*arguments, **named)
        return original(*arguments, **named)

    monkeypatch.setattr(owner, name, call)


def at_put(owner: type) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch, victim: Victim) -> None:
        def before(_: Any, new: NewRow) -> None:
            if new.token_ids[0] == MARK:
                victim.fail()

        wrapped(monkeypatch, owner, "put", before)

    return patch


def at_blocks(monkeypatch: pytest.MonkeyPatch, victim: Victim) -> None:
    wrapped(monkeypatch, Rows, "add_blocks", lambda rows, row, blocks: victim.look([row]))


def at_inputs(monkeypatch: pytest.MonkeyPatch, victim: Victim) -> None:
    def before(builder: InputBuilder, plan: StepPlan) -> None:
        victim.look([chunk.row for chunk in plan.chunks])

    wrapped(monkeypatch, InputBuilder, "build", before)
    wrapped(monkeypatch, MovingInputs, "go_on", before)


def at_moving(monkeypatch: pytest.MonkeyPatch, victim: Victim) -> None:
    """Raises both when the next step begins early and when it runs in its turn."""
    wrapped(monkeypatch, MovingInputs, "move", lambda moving: victim.look(moving._row_ids.tolist()))
    at_inputs(monkeypatch, victim)


def at_run(monkeypatch: pytest.MonkeyPatch, victim: Victim) -> None:
    """Puts a token into the row that the model does not have."""

    def before(inputs: InputBuilder | MovingInputs, *_: object) -> None:
        if victim.row is not None and victim.steps >= 3:
            victim.raised += 1
            inputs._rows.token_ids[victim.row] = VOCAB + 7

    wrapped(monkeypatch, InputBuilder, "build", before)
    wrapped(monkeypatch, MovingInputs, "move", before)


def at_gather(monkeypatch: pytest.MonkeyPatch, victim: Victim) -> None:
    def before(builder: BatchBuilder, wanted: LogitRows, left_out: Collection[int] = ()) -> None:
        victim.look(set(wanted.rows.tolist()) - set(left_out))

    wrapped(monkeypatch, BatchBuilder, "build", before)


def at_processors(monkeypatch: pytest.MonkeyPatch, victim: Victim) -> None:
    def before(
        processors: RowProcessors, wanted: LogitRows, batch: Any, logits: Any, left_out: Collection[int] = ()
    ) -> None:
        victim.look(set(wanted.rows.tolist()) - set(left_out))

    wrapped(monkeypatch, RowProcessors, "apply", before)


def at_sample(monkeypatch: pytest.MonkeyPatch, victim: Victim) -> None:
    """Makes the victim forbid a token that does not exist."""
    sample = victim.executable.sample

    def spoiled(logits: Logits, batch: SamplingBatch) -> SampledBatch:
        own = np.flatnonzero((batch.token_row == victim.row) & (batch.temperature > 0))
        if len(own) and victim.steps >= 3:
            victim.raised += 1
            raise StepError("sampling: an id is out of bounds")
        return sample(logits, batch)

    monkeypatch.setattr(victim.executable, "sample", spoiled)


def at_append(monkeypatch: pytest.MonkeyPatch, victim: Victim) -> None:
    """Makes the victim's line of the token table full."""

    def before(runner: Runner, wanted: LogitRows, *_: Any) -> None:
        if victim.row in wanted.rows and victim.steps >= 3:
            victim.raised += 1
            runner._rows.num_tokens[victim.row] = runner._rows.token_ids.shape[1]

    wrapped(monkeypatch, Runner, "_append", before)


def at_logprobs(monkeypatch: pytest.MonkeyPatch, victim: Victim) -> None:
    def before(sampled: SampledBatch, at: int, count: int) -> None:
        if count == 2 and victim.steps >= 3:  # the victim alone asks for two
            victim.fail()

    wrapped(monkeypatch, __import__("appliance.engine.report", fromlist=["_"]), "_token_logprobs", before)


def at_commit(monkeypatch: pytest.MonkeyPatch, victim: Victim) -> None:
    wrapped(monkeypatch, Sequence, "finish_reason", lambda sequence: victim.look([sequence.row]))


POINTS: dict[str, Patch] = {
    "rows.put": at_put(Rows), "processors.put": at_put(RowProcessors), "blocks": at_blocks, "inputs": at_inputs,
    "moving": at_moving, "run": at_run, "gather": at_gather, "processors": at_processors, "sample": at_sample,
    "append": at_append, "logprobs": at_logprobs, "commit": at_commit,
}  # fmt: skip


def victim_request(name: str = "victim", **sampling: Any) -> GenerateRequest:
    return generate(name, [MARK, *SHARED], 20, temperature=0.8, seed=5, logprobs=2, **sampling)


def others() -> list[GenerateRequest]:
    plain = [drawn([number, *SHARED], 16, f"d{number}", seed=number) for number in range(3)]
    return [*plain, generate("greedy", SHARED, 18, temperature=0.0), drawn(SHARED, 12, "told", logprobs=1, seed=9)]


def loop_over(executable: Executable) -> tuple[EngineLoop, Scheduler]:
    config = configure(block_size=4)
    scheduler = Scheduler(config)
    return EngineLoop(scheduler, Runner(executable, config, VOCAB), SamplingLimits(4, 4)), scheduler


def answers(
    requests: list[GenerateRequest], executable: Executable, victim: Victim | None = None
) -> dict[str, list[SequenceOutput]]:
    loop, scheduler = loop_over(executable)
    outputs: dict[str, list[SequenceOutput]] = {}
    events = [event for request in requests for event in loop.handle(b"c", request)]
    while loop.has_work or events:
        for _, event in events:
            assert isinstance(event, OutputBatch)
            for output in event.outputs:
                outputs.setdefault(output.request_id, []).append(output)
        if victim is not None:
            running = {sequence.tokens[0]: sequence.row for sequence in scheduler._books.running}
            victim.row = running.get(MARK)
            victim.steps += victim.row is not None
        events = loop.step() if loop.has_work else []
        scheduler.check_invariants()
    assert scheduler.kv.pool.num_used == 0
    assert len(scheduler._books.free_rows) == scheduler.config.max_num_seqs
    return outputs


def tokens_of(outputs: list[SequenceOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def executable_of(num_threads: int = 1) -> Executable:
    return tiny_executable(configure(block_size=4), kernel_set="cpu-generic", num_threads=num_threads)


ALONE = answers(others(), executable_of())


@pytest.mark.parametrize("company", [0, 1, 5], ids=["alone", "with one", "in a crowd"])
@pytest.mark.parametrize("point", list(POINTS))
def test_the_row_fails_and_the_others_do_not_know(point: str, company: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one other row, the steps begin early; with many they do not."""
    executable = executable_of(num_threads=2)
    victim = Victim(executable)
    POINTS[point](monkeypatch, victim)
    neighbours = others()[:company]
    found = answers([*neighbours[:1], victim_request(), *neighbours[1:]], executable, victim)
    assert victim.raised > 0
    last = found["victim"][-1]
    assert (last.finish_reason, last.error_kind) == (FinishReason.ERROR, ErrorKind.INTERNAL)
    assert "fault" in str(last.error)
    assert "secret" not in str(last.error)
    for request in neighbours:
        name = request.request_id
        assert found[name][-1].finish_reason is FinishReason.LENGTH, name
        assert tokens_of(found[name]) == tokens_of(ALONE[name]), name


def test_who_shares_what_the_failed_one_was_to_store_computes_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both come in one step: the second shares blocks that the first should have filled but did not."""
    prompt = [MARK, *SHARED, *SHARED]
    heir = generate("heir", [*prompt, 1, 2, 3], 12, temperature=0.0)
    alone = tokens_of(answers([heir], executable_of())["heir"])
    executable = executable_of()
    victim = Victim(executable)

    def before(_: Any, new: NewRow) -> None:
        if len(new.token_ids) == len(prompt):
            victim.fail()

    wrapped(monkeypatch, Rows, "put", before)
    found = answers([generate("victim", prompt, 12, temperature=0.0), heir], executable, victim)
    assert victim.raised == 1
    assert found["victim"][-1].finish_reason is FinishReason.ERROR
    assert tokens_of(found["heir"]) == alone


class PanicError(BaseException):
    """The error that a library in another language raises."""


class Grammar:
    """Allows everything; raises at the given place, from the third mask on."""

    def __init__(self, point: str, error: BaseException) -> None:
        self.point, self.error = point, error
        self.masks = self.raised = 0
        self.is_complete = self.is_accepting = False

    def start(self) -> "Grammar":
        if self.point == "start":
            self.fail()
        return self

    def fail(self) -> None:
        self.raised += 1
        raise self.error

    def fill(self, row: Any) -> None:
        self.masks += 1
        row[:] = 0xFFFFFFFF
        if self.point == "fill" and self.masks >= 3:
            self.fail()

    def consume(self, token_ids: Any) -> None:
        if self.point == "consume" and self.masks >= 3:
            self.fail()

    def forced(self) -> list[int]:
        if self.point == "forced" and self.masks >= 3:
            self.fail()
        if self.point == "beyond" and self.masks >= 3:
            self.raised += 1
            return [VOCAB + 1]
        return []


@pytest.mark.parametrize("error", [InjectedError("a secret"), PanicError("a secret")], ids=["error", "panic"])
@pytest.mark.parametrize("point", ["start", "fill", "consume", "forced", "beyond"])
def test_a_constraint_that_raises_fails_its_row(point: str, error: BaseException) -> None:
    grammar = Grammar(point, error)
    loop, scheduler = loop_over(executable_of())
    constrained = generate("victim", [MARK, *SHARED], 20, temperature=0.8, seed=5)
    scheduler.add(b"c", constrained, grammar)
    neighbours = others()
    for request in neighbours:
        loop.handle(b"c", request)
    found = run_out(loop, scheduler)
    assert grammar.raised > 0
    assert found["victim"][-1].finish_reason is FinishReason.ERROR
    assert "secret" not in str(found["victim"][-1].error)
    for request in neighbours:
        assert tokens_of(found[request.request_id]) == tokens_of(ALONE[request.request_id]), request.request_id


def run_out(loop: EngineLoop, scheduler: Scheduler) -> dict[str, list[SequenceOutput]]:
    outputs: dict[str, list[SequenceOutput]] = {}
    while loop.has_work:
        for _, event in loop.step():
            assert isinstance(event, OutputBatch)
            for output in event.outputs:
                outputs.setdefault(output.request_id, []).append(output)
        scheduler.check_invariants()
    assert scheduler.kv.pool.num_used == 0
    return outputs


def test_a_request_that_cannot_be_taken_in_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def before(scheduler: Scheduler, client: bytes, message: GenerateRequest, *_: Any) -> None:
        if message.prompt_token_ids[0] == MARK:
            raise InjectedError("a secret of the machine")

    wrapped(monkeypatch, Scheduler, "add", before)
    found = answers([victim_request(), greedy(SHARED, 4)], executable_of())
    assert found["victim"][-1].error_kind is ErrorKind.INTERNAL
    assert "secret" not in str(found["victim"][-1].error)
    assert found["r"][-1].finish_reason is FinishReason.LENGTH


def test_no_sequence_runs_in_a_slot_that_lacks_its_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's executable has no places for adapters, so none can be put into a slot."""
    monkeypatch.setattr(InputBuilder, "_adapters", lambda *_: None)
    config = configure(block_size=4, max_loras=1)
    scheduler = Scheduler(config)
    scheduler.adapters.served = {"mine": ServedAdapter("digest")}
    loop = EngineLoop(scheduler, Runner(executable_of(), config, VOCAB), SamplingLimits(4, 4))
    for name in ("first", "later"):
        loop.handle(b"c", msgspec.structs.replace(generate(name, SHARED, 4), adapter="mine"))
        found = run_out(loop, scheduler)
        assert found[name][-1].error_kind is ErrorKind.INTERNAL
        assert not tokens_of(found[name])


def test_what_no_row_is_to_blame_for_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise every request would fail for ever, without a restart of the engine."""
    executable = executable_of()
    loop, _ = loop_over(executable)
    loop.handle(b"c", greedy(SHARED, 9))
    loop.step()
    executable.close()
    with pytest.raises(Exception, match="closed"):
        loop.step()

    executable = executable_of()
    run, calls = executable.run, [0]

    def broken(inputs: StepInputs) -> Logits:
        calls[0] += 1
        if len(inputs.seq_lens) > 1:
            raise StepError("it has many")
        return run(inputs)

    monkeypatch.setattr(executable, "run", broken)
    loop, _ = loop_over(executable)
    for request in others():
        loop.handle(b"c", request)
    with pytest.raises(StepError, match="many"):
        loop.step()


def test_a_fault_while_a_result_is_taken_over_ends_the_sequence_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault comes after the books have ended the sequence."""
    original = ResultTaker._times

    def times(taker: ResultTaker, request: Any) -> Any:
        if request.message.request_id == "victim" and not getattr(times, "raised", False):
            times.raised = True  # type: ignore[attr-defined] # once
            raise InjectedError("late")
        return original(taker, request)

    monkeypatch.setattr(ResultTaker, "_times", times)
    found = answers([victim_request(), greedy(SHARED, 4)], executable_of())
    assert found["victim"][-1].error_kind is ErrorKind.INTERNAL
    assert sum(output.finish_reason is not None for output in found["victim"]) == 1
