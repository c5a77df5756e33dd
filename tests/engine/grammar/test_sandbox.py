"""A constraint that ends the library's process ends its own trial, within its limits, and nothing else."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from appliance.engine.boot import boot
from appliance.engine.grammar.compiler import GrammarCompiler
from appliance.engine.grammar.gate import GrammarGate
from appliance.engine.grammar.interface import GrammarError, UntriedError
from appliance.engine.grammar.sandbox.client import Sandbox
from appliance.engine.grammar.sandbox.wire import TrialLimits
from appliance.engine.loop import EngineLoop
from appliance.engine.messages import ErrorKind, FinishReason
from appliance.engine.scripted import Script
from tests.engine.plans import scripted_plan

from .hostile import ENDING, HEAVY
from .test_gate import ask, outputs, rest
from .vocabulary import VOCAB
from .walks import backend, constraint, vocabulary


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox("guidance", VOCAB, TrialLimits(cpu_s=1))
    made.start(vocabulary())
    yield made
    made.close()


def pid_of(sandbox: Sandbox) -> int:
    assert sandbox._process is not None
    return sandbox._process.pid


@pytest.mark.parametrize("name", ENDING)
def test_what_ends_the_library_ends_its_trial_alone(sandbox: Sandbox, name: str) -> None:
    sandbox.try_out(constraint("regex", "a"))
    pid = pid_of(sandbox)
    with pytest.raises(GrammarError, match=r"too deeply|too large|takes more than"):
        sandbox.try_out(ENDING[name])
    assert sandbox.try_out(constraint("regex", "b")).text
    assert pid_of(sandbox) == pid


def test_a_verdict_has_what_the_engine_compiles_and_what_it_costs(sandbox: Sandbox) -> None:
    wish = constraint("gbnf", 'root ::= "a" | "b"')
    small = sandbox.try_out(wish)
    assert small.text == backend().prepare(wish)
    assert backend().compile(wish, small.text).start().forced() == []
    assert sandbox.try_out(constraint("regex", "(ab){40000}")).grown_bytes > small.grown_bytes + (8 << 20)


def test_the_back_ends_own_refusal_keeps_its_place(sandbox: Sandbox) -> None:
    with pytest.raises(GrammarError) as refused:
        sandbox.try_out(constraint("json_schema", '{"properties": {"a": {"pattern": "("}}}'))
    assert refused.value.path == ".properties.a.pattern"


def test_a_trial_that_hangs_is_ended_and_holds_up_no_other() -> None:
    hasty = Sandbox("guidance", VOCAB, TrialLimits(cpu_s=30, wall_s=1.0, slow_s=0.1))
    hasty.start(vocabulary())
    hasty.try_out(constraint("regex", "a"))
    ends: list[object] = []

    def hang() -> None:
        with pytest.raises(UntriedError, match="within 1 s") as refused:
            hasty.try_out(HEAVY)
        ends.append(refused.value)

    threads = [threading.Thread(target=hang) for _ in range(3)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    hasty.try_out(constraint("regex", "b"))
    assert not ends, "the quick one waited for those that hang"
    for thread in threads:
        thread.join()
    assert len(ends) == len(threads)
    assert time.monotonic() - started < 10
    hasty.close()


def test_a_sandbox_that_was_killed_is_started_anew(sandbox: Sandbox) -> None:
    sandbox.try_out(constraint("regex", "a"))
    killed = pid_of(sandbox)
    os.kill(killed, signal.SIGKILL)
    assert sandbox.try_out(constraint("regex", "b")).text
    assert pid_of(sandbox) != killed


def test_a_closed_sandbox_tries_nothing() -> None:
    made = Sandbox("guidance", VOCAB)
    made.start(vocabulary())
    made.close()
    with pytest.raises(UntriedError):
        made.try_out(constraint("regex", "a"))


ENGINE = """
import sys, threading
from appliance.engine.grammar.sandbox.client import Sandbox
from appliance.engine.grammar.sandbox.wire import TrialLimits
from tests.engine.grammar.hostile import HEAVY
from tests.engine.grammar.vocabulary import VOCAB
from tests.engine.grammar.walks import vocabulary

sandbox = Sandbox("guidance", VOCAB, TrialLimits(cpu_s=60, wall_s=60.0))
sandbox.start(vocabulary())
threading.Thread(target=sandbox.try_out, args=(HEAVY,)).start()
print(sandbox._process.pid, flush=True)
"""


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(what: object, seconds: float = 20.0) -> None:
    assert callable(what)
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_nothing_outlives_an_engine_that_was_killed() -> None:
    root = Path(__file__).parents[3]
    with subprocess.Popen([sys.executable, "-c", ENGINE], cwd=root, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        process = int(engine.stdout.readline())
        wait_for(lambda: children(process))
        (trial,) = children(process)
        engine.kill()
    wait_for(lambda: not is_running(process) and not is_running(trial))


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[EngineLoop]:
    booted = boot(scripted_plan(tmp_path, Script(vocab_size=VOCAB)), lambda phase: None)
    gate = GrammarGate(GrammarCompiler(lambda _: backend(), Sandbox("guidance", VOCAB)))
    made = EngineLoop(booted._scheduler, booted._runner, booted._intake.limits, grammars=gate)
    made.handle(b"c", vocabulary())
    yield made
    made.close()


def test_an_engine_outlives_what_ends_its_library(loop: EngineLoop) -> None:
    names = ("chained terminals", "chained Lark rules", "chained references")
    for name in names:
        loop.handle(b"c", msgspec.structs.replace(ask(name), constraint=ENDING[name]))
    loop.handle(b"c", ask("good"))
    by_name = {output.request_id: output for output in rest(loop)}
    for name in names:
        assert (by_name[name].error_kind, by_name[name].error_field) == (ErrorKind.INVALID, "f"), by_name[name]
    assert by_name["good"].finish_reason is FinishReason.STOP


def test_a_failure_is_kept_and_tried_no_more(loop: EngineLoop) -> None:
    request = msgspec.structs.replace(ask("first"), constraint=ENDING["chained Lark rules"])
    assert loop.handle(b"c", request) == []
    rest(loop)
    (refused,) = outputs(loop.handle(b"c", msgspec.structs.replace(request, request_id="second")))
    assert refused.error_kind is ErrorKind.INVALID
