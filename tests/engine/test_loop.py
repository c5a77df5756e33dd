"""The loop and the in-process engine: intake between steps, drains, failures, injected clock and faults."""

from pathlib import Path

import msgspec
import pytest

from appliance.engine.boot import Phases, boot
from appliance.engine.inproc import InprocEngine
from appliance.engine.loop import EngineLoop
from appliance.engine.messages import (
    AbortRequest,
    BootPhase,
    EngineEvent,
    EngineStats,
    ErrorKind,
    FinishReason,
    OutputBatch,
    SequenceOutput,
    UtilityRequest,
    UtilityResult,
)
from appliance.engine.scripted import Reply, Script

from .plans import scripted_plan
from .simulator import generate


@pytest.fixture
def loop(tmp_path: Path) -> EngineLoop:
    return boot(scripted_plan(tmp_path), lambda phase: None)


def outputs(events: list[tuple[bytes, EngineEvent]]) -> list[SequenceOutput]:
    return [output for _, event in events if isinstance(event, OutputBatch) for output in event.outputs]


def call(loop: EngineLoop, method: str) -> object:
    ((_, event),) = loop.handle(b"c", UtilityRequest(call_id="1", method=method))  # type: ignore[arg-type] # free
    assert isinstance(event, UtilityResult)
    return msgspec.msgpack.decode(event.value)


def test_events_go_to_the_client_that_asked(loop: EngineLoop) -> None:
    loop.handle(b"one", generate("r", [1], 2))
    loop.handle(b"two", generate("r", [5], 2))
    assert {client: event.outputs[0].token_ids for client, event in loop.step()} == {b"one": [2], b"two": [6]}


def test_a_client_that_left_is_forgotten_with_all_it_asked_for(loop: EngineLoop) -> None:
    loop.handle(b"one", generate("r", [1], 50))
    loop.handle(b"two", generate("r", [5], 2))
    loop.step()
    loop.forget_client(b"one")
    loop.step()
    assert not loop.has_work
    assert msgspec.convert(call(loop, "stats"), EngineStats).num_blocks_used == 0


def test_one_sequence_is_aborted_and_its_siblings_run_on(loop: EngineLoop) -> None:
    loop.handle(b"c", generate("r", [1], 5, n=3))
    loop.step()
    loop.step()
    (ended,) = outputs(loop.handle(b"c", AbortRequest(["r"], index=1)))
    assert (ended.index, ended.finish_reason) == (1, FinishReason.ABORT)
    assert loop.handle(b"c", AbortRequest(["r"], index=1)) == []
    rest = []
    while loop.has_work:
        rest += outputs(loop.step())
    assert {output.index for output in rest} == {0, 2}


def test_drain_answers_when_idle_and_refuses_meanwhile(loop: EngineLoop) -> None:
    loop.handle(b"c", generate("open", [1], 3))
    assert loop.handle(b"c", UtilityRequest(call_id="d", method="drain")) == []
    (refused,) = outputs(loop.handle(b"c", generate("late", [1], 3)))
    assert refused.error_kind is ErrorKind.UNAVAILABLE
    while loop.has_work:
        assert loop.drained() == []
        loop.step()
    ((client, event),) = loop.drained()
    assert (client, event.call_id) == (b"c", "d")  # type: ignore[union-attr] # a UtilityResult
    assert loop.drained() == []


def test_all_fail_as_one(loop: EngineLoop) -> None:
    loop.handle(b"one", generate("a", [1], 50, n=2))
    loop.handle(b"two", generate("b", [1], 50))
    loop.step()
    failed = outputs(loop.fail_all("the reason", ErrorKind.INTERNAL))
    assert [(output.request_id, output.index) for output in failed] == [("a", 0), ("a", 1), ("b", 0)]
    assert {(output.finish_reason, output.error) for output in failed} == {(FinishReason.ERROR, "the reason")}
    assert not loop.has_work


def test_what_came_too_late_is_answered(loop: EngineLoop) -> None:
    (refused,) = outputs(loop.refuse(b"c", generate("late", [1]), ErrorKind.INTERNAL, "dead"))
    assert (refused.request_id, refused.error, refused.error_kind) == ("late", "dead", ErrorKind.INTERNAL)
    ((_, event),) = loop.refuse(b"c", UtilityRequest(call_id="s", method="stats"), ErrorKind.INTERNAL, "dead")
    assert isinstance(event, UtilityResult)
    assert event.error == "dead"
    assert not loop.has_work


def test_the_prefix_cache_is_reset_by_call(loop: EngineLoop) -> None:
    loop.handle(b"c", generate("r", [1], 40))
    loop.step()
    assert call(loop, "reset_prefix_cache") is False
    while loop.has_work:
        loop.step()
    assert call(loop, "reset_prefix_cache") is True


def test_the_pulse_tells_the_step_that_runs_and_since_when(tmp_path: Path) -> None:
    plan = scripted_plan(tmp_path)
    seen: list[tuple[int, float]] = []
    now = iter(range(100, 200))
    calm = boot(plan, lambda phase: None)
    loop = EngineLoop(
        calm._scheduler, calm._runner, calm._intake.limits, clock=lambda: float(next(now)),
        before_step=lambda step: seen.append((loop.pulse.step, loop.pulse.since)),
    )  # fmt: skip
    loop.handle(b"c", generate("r", [1], 2))
    loop.step()
    loop.step()
    assert seen[0] == (1, 100.0)
    assert seen[1][0] == 2
    assert seen[1][1] > 100.0
    assert loop.pulse.since == 0.0


def test_an_injected_fault_comes_out_of_the_step(tmp_path: Path) -> None:
    def fail(step: int) -> None:
        raise RuntimeError(f"fault in step {step}")

    calm = boot(scripted_plan(tmp_path), lambda phase: None)
    loop = EngineLoop(calm._scheduler, calm._runner, calm._intake.limits, before_step=fail)
    loop.handle(b"c", generate("r", [1], 2))
    with pytest.raises(RuntimeError, match="fault in step 1"):
        loop.step()
    assert outputs(loop.fail_all("dead", ErrorKind.INTERNAL))[0].error == "dead"


def test_in_process_the_same_messages_give_the_same_events(tmp_path: Path) -> None:
    phases: list[BootPhase] = []
    script = Script(replies=[Reply([7], [20, 21])])
    with InprocEngine.from_plan(scripted_plan(tmp_path, script), phases.append) as engine:
        engine.send(generate("r", [5, 7], 10, eos=(0,), logprobs=1))
        engine.send(generate("bad", [5, 7], temperature=-1.0))
        gathered: list[SequenceOutput] = []
        while engine.has_work:
            gathered += outputs([(b"", event) for event in engine.receive()])
        assert engine.receive() == []
    assert [output.error_field for output in gathered if output.request_id == "bad"] == ["temperature"]
    assert [output.token_ids for output in gathered if output.request_id == "r"] == [[20], [21], [0]]
    assert [phase.name for phase in phases if phase.ended] == ["load", "runner"]


def touched_while_idle(loop: EngineLoop, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns the blocks that the idle loop makes resident until there are enough."""
    touched: list[int] = []
    monkeypatch.setattr(loop._runner._executable, "prefault", touched.append)
    while loop.idle():
        assert msgspec.convert(call(loop, "stats"), EngineStats).num_blocks_touched == touched[-1] + 1
    return touched


def test_an_idle_loop_makes_blocks_resident_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = boot(scripted_plan(tmp_path, num_blocks=12, prefault_blocks=5), lambda phase: None)
    assert touched_while_idle(loop, monkeypatch) == [0, 1, 2, 3, 4]
    assert touched_while_idle(loop, monkeypatch) == []
    loop.handle(b"c", generate("r", [1] * 40, 2))  # three blocks, which are resident
    while loop.has_work:
        loop.step()
    assert msgspec.convert(call(loop, "stats"), EngineStats).num_blocks_touched == 5
    assert touched_while_idle(loop, monkeypatch) == [5, 6, 7], "five again, beside those that were taken"
    loop.handle(b"c", generate("s", [2] * 100, 2))  # seven: one that came back, and six beside the first three
    while loop.has_work:
        loop.step()
    assert touched_while_idle(loop, monkeypatch) == [9, 10, 11], "the ninth was touched by its use; the cache ends"


def test_a_loop_without_a_reserve_leaves_memory_alone(loop: EngineLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    assert touched_while_idle(loop, monkeypatch) == []


def test_phases_follow_one_another_and_sum_up() -> None:
    now = iter([0.0, 0.05, 0.2, 1.0, 1.0, 4.0])
    said: list[BootPhase] = []
    phases = Phases(said.append, clock=lambda: next(now))
    phases.progress("weights", 0, 10)
    phases.progress("weights", 1, 10)
    phases.progress("weights", 5, 10)
    phases.progress("runner", 0, 0)
    phases.end()
    assert phases.seconds == {"weights": 1.0, "runner": 3.0}
    assert [(phase.name, phase.done, phase.ended) for phase in said] == [
        ("weights", 0, False), ("weights", 5, False), ("weights", 0, True), ("runner", 0, False), ("runner", 0, True),
    ]  # fmt: skip
