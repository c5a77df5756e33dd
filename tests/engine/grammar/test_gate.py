"""Requests wait for their grammar: admitted, refused, aborted, late, too many."""

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from appliance.engine.boot import boot
from appliance.engine.grammar import compiler as compilers
from appliance.engine.grammar.compiler import GrammarCompiler
from appliance.engine.grammar.gate import GrammarGate, closed_gate
from appliance.engine.grammar.interface import Grammar, GrammarError
from appliance.engine.loop import EngineLoop
from appliance.engine.messages import (
    AbortRequest,
    Constraint,
    EngineEvent,
    ErrorKind,
    FinishReason,
    GenerateRequest,
    OutputBatch,
    SequenceOutput,
    UtilityRequest,
    Vocabulary,
)
from appliance.engine.refusal import Refusal
from appliance.engine.scripted import Script
from tests.engine.plans import scripted_plan
from tests.engine.simulator import generate

from .vocabulary import VOCAB
from .walks import backend, constraint

VOCABULARY = Vocabulary(tokenizer="{}", eos_token_ids=(0,))


class SlowBackend:
    """Compiles once it is released."""

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.num_begun = threading.Semaphore(0)

    def compile(self, wish: Constraint) -> Grammar:
        self.num_begun.release()
        assert self.may_go.wait(20)
        if wish.source == "panic":
            raise BaseException("a panic")  # as the library's panics derive
        return backend().compile(wish)


def wait_until(begun: threading.Semaphore, count: int) -> None:
    for _ in range(count):
        assert begun.acquire(timeout=20)


@pytest.fixture
def slow() -> Iterator[SlowBackend]:
    made = SlowBackend()
    yield made
    made.may_go.set()


def loop_of(folder: Path, gate: GrammarGate) -> EngineLoop:
    loop = boot(scripted_plan(folder, Script(vocab_size=VOCAB)), lambda phase: None)
    made = EngineLoop(loop._scheduler, loop._runner, loop._intake.limits, grammars=gate)
    made.handle(b"c", VOCABULARY)
    return made


@pytest.fixture
def loop(tmp_path: Path, slow: SlowBackend) -> EngineLoop:
    return loop_of(tmp_path, GrammarGate(GrammarCompiler(lambda vocabulary: slow)))


def ask(name: str, source: str = "[ab]{2}", **sampling: object) -> GenerateRequest:
    return msgspec.structs.replace(generate(name, [5], 8, **sampling), constraint=constraint("regex", source))


def outputs(events: list[tuple[bytes, EngineEvent]]) -> list[SequenceOutput]:
    return [output for _, event in events if isinstance(event, OutputBatch) for output in event.outputs]


def rest(loop: EngineLoop) -> list[SequenceOutput]:
    found = []
    while loop.has_work:
        found += outputs(loop.step())
    return found


def test_others_run_while_a_grammar_is_compiled(loop: EngineLoop, slow: SlowBackend) -> None:
    assert loop.handle(b"c", ask("waits")) == []
    loop.handle(b"c", generate("runs", [1], 3))
    ended = [outputs(loop.step()) for _ in range(3)]
    assert {output.request_id for batch in ended for output in batch} == {"runs"}
    assert loop.has_work
    assert loop.step() == []
    slow.may_go.set()
    assert {output.request_id for output in rest(loop)} == {"waits"}


def test_requests_that_wait_can_be_aborted_and_forgotten(loop: EngineLoop, slow: SlowBackend) -> None:
    loop.handle(b"c", ask("one", n=2))
    loop.handle(b"d", ask("two"))
    ended = outputs(loop.handle(b"c", AbortRequest(["one"])))
    assert [(output.index, output.finish_reason) for output in ended] == [
        (0, FinishReason.ABORT),
        (1, FinishReason.ABORT),
    ]
    loop.forget_client(b"d")
    assert not loop.has_work
    slow.may_go.set()
    assert loop.step() == []


def test_a_dead_engine_fails_those_that_wait_and_a_drain_finishes_them(loop: EngineLoop, slow: SlowBackend) -> None:
    loop.handle(b"c", ask("one"))
    (failed,) = outputs(loop.fail_all("gone", ErrorKind.INTERNAL))
    assert (failed.request_id, failed.error) == ("one", "gone")
    loop.handle(b"c", ask("two"))
    assert loop.handle(b"c", UtilityRequest(call_id="d", method="drain")) == []
    slow.may_go.set()
    assert rest(loop)[-1].finish_reason is FinishReason.STOP
    assert len(loop.drained()) == 1


def test_an_id_is_taken_while_its_request_waits(loop: EngineLoop) -> None:
    loop.handle(b"c", ask("one"))
    (refused,) = outputs(loop.handle(b"c", ask("one")))
    assert refused.error_field == "request_id"


def test_a_panic_of_the_library_fails_one_request(loop: EngineLoop, slow: SlowBackend) -> None:
    slow.may_go.set()
    loop.handle(b"c", ask("bad", "panic"))
    loop.handle(b"c", ask("good"))
    by_name = {output.request_id: output for output in rest(loop)}
    assert (by_name["bad"].error_kind, by_name["bad"].error_field) == (ErrorKind.INVALID, "f")
    assert by_name["good"].finish_reason is FinishReason.STOP


def test_a_grammar_that_takes_too_long_is_refused(slow: SlowBackend) -> None:
    now = [0.0]
    gate = GrammarGate(GrammarCompiler(lambda vocabulary: slow), lambda: now[0], budget_s=5.0)
    gate.compiler.use(VOCABULARY)
    names = [*(f"late {number}" for number in range(compilers.NUM_THREADS)), "not begun"]
    for name in names:
        assert gate.admit(b"c", ask(name, f"{name}*")) is None
    wait_until(slow.num_begun, compilers.NUM_THREADS)
    assert gate.settled() == []
    now[0] = 6.0
    settled = gate.settled()
    assert [message.request_id for _, message, _ in settled] == names
    kinds = [outcome.kind for _, _, outcome in settled if isinstance(outcome, Refusal)]
    assert kinds == [*[ErrorKind.INVALID] * compilers.NUM_THREADS, ErrorKind.OVERLOADED]
    assert len(gate) == 0


def test_only_so_many_compilations_wait(slow: SlowBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "MAX_PENDING", 3)
    gate = GrammarGate(GrammarCompiler(lambda vocabulary: slow))
    gate.compiler.use(VOCABULARY)
    for number in range(3):
        gate.admit(b"c", ask(f"r{number}", "a" * (number + 1)))
    with pytest.raises(Refusal) as refused:
        gate.admit(b"c", ask("more", "aaaa"))
    assert refused.value.kind is ErrorKind.OVERLOADED


def test_a_constraint_needs_a_vocabulary_and_a_back_end(tmp_path: Path) -> None:
    gate = GrammarGate(GrammarCompiler(lambda vocabulary: backend()))
    with pytest.raises(Refusal):
        gate.admit(b"c", ask("early"))
    loop = loop_of(tmp_path, closed_gate())
    loop.handle(b"c", ask("off"))
    (refused,) = rest(loop)
    assert "takes no constraints" in (refused.error or "")


def test_a_vocabulary_that_is_not_understood_is_said(tmp_path: Path) -> None:
    loop = boot(scripted_plan(tmp_path), lambda phase: None)
    loop.handle(b"c", VOCABULARY)
    loop.handle(b"c", ask("any"))
    (refused,) = rest(loop)
    loop.close()
    assert "vocabulary" in (refused.error or "")
    assert refused.error_kind is ErrorKind.INVALID


def test_a_kept_grammar_needs_no_waiting(loop: EngineLoop, slow: SlowBackend) -> None:
    slow.may_go.set()
    loop.handle(b"c", ask("first"))
    rest(loop)
    slow.may_go.clear()
    loop.handle(b"c", ask("second"))
    assert rest(loop)[-1].finish_reason is FinishReason.STOP


def test_errors_are_those_of_the_field_that_asked(loop: EngineLoop, slow: SlowBackend) -> None:
    slow.may_go.set()
    for field in ("guided_regex", "structured_outputs.regex"):
        wish = msgspec.structs.replace(constraint("regex", "(("), field=field)
        events = loop.handle(b"c", msgspec.structs.replace(ask(field), constraint=wish))
        (refused,) = outputs(events) + rest(loop)
        assert refused.error_field == field
    with pytest.raises(GrammarError):
        backend().compile(constraint("regex", "(("))
