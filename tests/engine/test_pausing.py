"""Pauses: tokens are those of a run without one, new requests wait, and weights and adapters change meanwhile."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from appliance.engine.boot import boot
from appliance.engine.events import Events
from appliance.engine.inproc import InprocEngine
from appliance.engine.loop import EngineLoop
from appliance.engine.messages import (
    AbortRequest,
    Constraint,
    EngineMessage,
    EngineStats,
    ErrorKind,
    FinishReason,
    GenerateRequest,
    Heartbeat,
    OutputBatch,
    SamplingParams,
    SequenceOutput,
    UtilityRequest,
    UtilityResult,
)
from appliance.engine.pause_messages import PAUSE_MODES, PauseMode
from appliance.engine.weight_messages import UpdateWeights, WeightUpdate
from appliance.plan.prepare import prepare
from tests.engine.plans import scripted_plan
from tests.engine.simulator import generate
from tests.engine.test_rank_group import STAGES, TENSOR, engine_of, machine_with, spec_of

__all__ = ["spec_of"]

SMALL = ("cache.num_blocks=24", "hardware.memory.kv_cache=auto", "scheduler.max_num_seqs=4")
KINDS = [
    ("llama", ()),
    ("llama", SMALL),
    ("llama", (*SMALL, "hardware.memory.swap_space=1MiB")),
    ("jamba", ()),
    ("deepseek3", ("speculative.method=ngram", "speculative.num_tokens=3")),
    ("llama", TENSOR),
    ("llama", STAGES),
]


class Run:
    """An engine and what it has said, to one client."""

    def __init__(self, engine: InprocEngine) -> None:
        self.engine = engine
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.ended: dict[str, SequenceOutput] = {}
        self.results: dict[str, UtilityResult] = {}

    def ask(self, number: int, **changes: object) -> None:
        length = 4 + number * 5 % 20
        sampling = SamplingParams(
            max_tokens=12 + number % 9, n=1 + number % 2, seed=number, temperature=0.9, ignore_eos=True
        )
        sampling = msgspec.structs.replace(sampling, **changes)
        prompt = [10 + (number % 3 * 5 + at) % 40 for at in range(length)]
        self.engine.send(GenerateRequest(request_id=str(number), prompt_token_ids=prompt, sampling=sampling))

    def call(self, method: str, **fields: object) -> None:
        self.engine.send(UtilityRequest(call_id=method, method=method, **fields))  # type: ignore[arg-type] # free fields

    def pause(self, mode: PauseMode, *, clears_cache: bool = False) -> None:
        self.results.pop("pause", None)
        self.call("pause", mode=mode, clears_cache=clears_cache)

    def read(self) -> None:
        for event in self.engine.receive():
            if isinstance(event, UtilityResult):
                self.results[event.call_id] = event
            for output in event.outputs if isinstance(event, OutputBatch) else ():
                self.tokens.setdefault((output.request_id, output.index), []).extend(output.token_ids)
                if output.finish_reason is not None:
                    self.ended[output.request_id] = output
        self.engine._loop._scheduler.check_invariants()

    def finish(self) -> None:
        while self.engine.has_work:
            self.read()

    @property
    def stats(self) -> EngineStats:
        return self.engine._loop._stats()


def traffic(run: Run, pauses: random.Random | None) -> dict[tuple[str, int], list[int]]:
    """Answers a trace of requests, which pauses at random steps do not change. Returns all tokens."""
    for number in range(12):
        run.ask(number)
        for _ in range(number % 4):
            if pauses is not None and pauses.random() < 0.4:
                mode: PauseMode = "keep" if pauses.random() < 0.6 else "wait"
                run.pause(mode, clears_cache=pauses.random() < 0.5)
                run.read()
                before = {key: list(each) for key, each in run.tokens.items()}
                for _ in range(pauses.randrange(3)):
                    run.read()
                if mode == "keep":
                    assert not run.engine.has_work
                    assert run.tokens == before
                if pauses.random() < 0.3:
                    run.call("reset_prefix_cache", preempts=True)
                run.call("resume")
            run.read()
    run.finish()
    return run.tokens


@pytest.mark.parametrize(("name", "overrides"), KINDS)
def test_pauses_at_random_steps_change_no_token(
    name: str, overrides: tuple[str, ...], spec_of: Callable[[str], Path], tmp_path: Path
) -> None:
    plan = prepare(str(spec_of(name)), overrides, machine_with(4, tmp_path), to_run=False).plan
    with InprocEngine.from_plan(plan) as engine:
        expected = traffic(Run(engine), None)
    assert len(expected) == 18
    for seed in range(3):
        with InprocEngine.from_plan(plan) as engine:
            assert traffic(Run(engine), random.Random(seed)) == expected


@pytest.fixture
def run(spec_of: Callable[[str], Path]) -> Iterator[Run]:
    with engine_of(spec_of("llama")) as engine:
        yield Run(engine)


@pytest.mark.parametrize("mode", PAUSE_MODES)
def test_what_is_open_ends_runs_on_or_stands_still_and_what_comes_waits(mode: PauseMode, run: Run) -> None:
    run.ask(0)
    run.read()
    run.pause(mode)
    run.read()
    assert run.stats.pause == mode
    assert ("pause" in run.results) == (mode != "wait")
    run.ask(2)
    for _ in range(60):
        run.read()
    assert not run.engine.has_work, "a paused engine does not keep its thread busy"
    assert "pause" in run.results
    assert ("2", 0) not in run.tokens
    assert run.stats.num_waiting == 1
    assert {"abort": FinishReason.ABORT, "wait": FinishReason.LENGTH, "keep": None}[mode] == (
        run.ended["0"].finish_reason if "0" in run.ended else None
    )
    run.call("resume")
    run.finish()
    assert run.stats.pause is None
    assert len(run.tokens["2", 0]) == 14
    assert len(run.tokens["0", 0]) == (12 if mode != "abort" else len(run.tokens["0", 0]))


def test_a_pause_takes_another_mode(run: Run) -> None:
    run.ask(0)
    run.read()
    run.pause("keep")
    run.read()
    run.pause("wait")
    run.finish()
    assert run.ended["0"].finish_reason is FinishReason.LENGTH
    run.ask(2)
    run.pause("abort")
    run.finish()
    assert run.ended["2"].finish_reason is FinishReason.ABORT
    assert run.stats.num_waiting == 0


def test_a_pause_that_waits_is_answered_when_the_last_request_is_aborted(run: Run) -> None:
    run.ask(0)
    run.read()
    run.pause("wait")
    run.read()
    assert "pause" not in run.results
    run.engine.send(AbortRequest(["0"]))
    run.read()
    assert "pause" in run.results


def test_prefixes_are_forgotten_once_nothing_uses_them(run: Run) -> None:
    pool = run.engine._loop._scheduler.kv.pool
    run.ask(3)
    run.finish()
    run.ask(0)
    run.read()
    assert pool.num_cached > 0
    run.pause("keep", clears_cache=True)
    run.read()
    assert pool.num_cached > 0
    run.engine.send(AbortRequest(["0"]))
    run.read()
    assert pool.num_cached == 0
    run.ask(3)
    run.call("resume")
    run.finish()
    run.pause("abort")
    run.finish()
    assert pool.num_cached > 0
    run.pause("abort", clears_cache=True)
    run.finish()
    assert pool.num_cached == 0


@pytest.mark.parametrize("mode", PAUSE_MODES)
def test_a_drain_of_a_paused_engine_fails_what_waits_and_ends(mode: PauseMode, run: Run) -> None:
    run.ask(0)
    run.read()
    run.pause(mode)
    run.ask(2)
    run.call("drain")
    run.finish()
    assert run.results["drain"].error is None
    assert (run.ended["2"].error_kind, run.ended["2"].error) == (
        ErrorKind.UNAVAILABLE,
        "the engine was paused, and shuts down",
    )
    ends = {"abort": FinishReason.ABORT, "wait": FinishReason.LENGTH, "keep": FinishReason.ERROR}
    assert run.ended["0"].finish_reason is ends[mode]
    run.pause("wait")
    run.finish()
    assert "shutting down" in (run.results["pause"].error or "")


def test_weights_change_while_no_request_is_open_or_kept_ones_are_aborted(
    run: Run, spec_of: Callable[[str], Path]
) -> None:
    model = str(spec_of("llama").parent / "model")

    def update(**fields: object) -> str | None:
        update = WeightUpdate(path=model, **fields)  # type: ignore[arg-type] # free fields
        run.engine.send(UpdateWeights(call_id="update", update=update))
        run.finish()
        return run.results.pop("update").error

    run.ask(0)
    run.read()
    run.pause("keep")
    run.ask(2)
    assert "a pause keeps" in (update() or "")
    assert update(abort=True) is None
    assert run.ended["0"].finish_reason is FinishReason.ABORT
    assert ("2", 0) not in run.tokens, "it waits on: the pause is not over"
    assert update() is None
    run.call("resume")
    run.finish()
    assert len(run.tokens["2", 0]) == 14
    assert run.stats.weights is not None
    assert run.stats.weights.version == 2


def test_weights_that_are_read_already_wait_for_the_end_of_a_pause(run: Run, spec_of: Callable[[str], Path]) -> None:
    run.ask(0)
    run.read()
    update = WeightUpdate(path=str(spec_of("llama").parent / "model"))
    run.engine.send(UpdateWeights(call_id="update", update=update))
    run.pause("keep")
    changes = run.engine._loop._weights
    assert changes is not None
    changes.wait(30.0)
    for _ in range(5):
        run.read()
    assert "update" not in run.results
    run.call("resume")
    run.finish()
    assert run.results["update"].error is None
    assert len(run.tokens["0", 0]) == 12


def test_a_grammar_waits_with_its_request(tmp_path: Path) -> None:
    loop = boot(scripted_plan(tmp_path), lambda phase: None)
    loop.handle(b"c", UtilityRequest(call_id="p", method="pause"))
    constrained = msgspec.structs.replace(
        generate("r", [1]), constraint=Constraint(kind="regex", source="a", field="regex")
    )
    assert outputs_of(loop.handle(b"c", constrained)) == []
    assert not loop.has_work
    [failed] = outputs_of(loop.handle(b"c", UtilityRequest(call_id="r", method="resume")))
    assert "no vocabulary" in (failed.error or "")


def test_every_client_hears_of_a_pause_at_once_and_one_that_leaves_is_not_waited_for(tmp_path: Path) -> None:
    loop: EngineLoop = boot(scripted_plan(tmp_path), lambda phase: None)
    loop.handle(b"one", generate("r", [1], 50))
    loop.step()
    events = loop.handle(b"two", UtilityRequest(call_id="p", method="pause", mode="wait"))
    assert [event.is_paused for client, event in events if client is None and isinstance(event, Heartbeat)] == [True]
    assert loop.pulse.is_paused
    [(client, result)] = loop.forget_client(b"one")
    assert isinstance(result, UtilityResult)
    assert (client, result.call_id) == (b"two", "p")
    events = loop.handle(b"two", UtilityRequest(call_id="r", method="resume"))
    assert [event.is_paused for client, event in events if client is None and isinstance(event, Heartbeat)] == [False]
    assert not loop.pulse.is_paused


def test_statistics_count_what_waits_though_no_step_tells_them(tmp_path: Path) -> None:
    loop = boot(scripted_plan(tmp_path), lambda phase: None)

    def num_waiting(message: EngineMessage) -> int:
        told = [event.stats for client, event in loop.handle(b"c", message) if isinstance(event, OutputBatch)]
        assert told[-1] is not None
        return told[-1].num_waiting

    assert num_waiting(UtilityRequest(call_id="p", method="pause", mode="keep")) == 0
    assert [num_waiting(generate(name, [1])) for name in ("a", "b")] == [1, 2]
    assert num_waiting(AbortRequest(request_ids=["a"])) == 1
    assert num_waiting(UtilityRequest(call_id="p", method="pause", mode="abort")) == 0


def outputs_of(events: Events) -> list[SequenceOutput]:
    return [output for _, event in events if isinstance(event, OutputBatch) for output in event.outputs]
