"""The step profiler: it is turned on by a call, and leaves no trace when it is off."""

from pathlib import Path

import msgspec

from appliance.engine.boot import boot
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.laps import Laps
from appliance.engine.loop import EngineLoop
from appliance.engine.messages import UtilityRequest, UtilityResult
from appliance.engine.profile import EngineProfile
from appliance.engine.runner import Runner
from appliance.engine.validation import SamplingLimits

from .plans import scripted_plan
from .simulator import generate
from .test_runner import configure
from .tiny_program import VOCAB, tiny_executable

PHASES = {"between", "schedule", "prepare", "model", "prepare sampling", "sample", "report", "commit"}


def call(loop: EngineLoop, method: str) -> EngineProfile | None:
    ((_, event),) = loop.handle(b"c", UtilityRequest(call_id="1", method=method))  # type: ignore[arg-type] # free
    assert isinstance(event, UtilityResult)
    value = msgspec.msgpack.decode(event.value)
    return msgspec.convert(value, EngineProfile) if isinstance(value, dict) else None


def run_out(loop: EngineLoop) -> None:
    while loop.has_work:
        loop.step()


def real_loop() -> EngineLoop:
    config = configure(max_num_batched_tokens=16)
    return EngineLoop(Scheduler(config), Runner(tiny_executable(config), config, VOCAB), SamplingLimits(4, 4))


def test_steps_are_told_apart_by_kind() -> None:
    loop = real_loop()
    call(loop, "start_profile")
    loop.handle(b"c", generate("a", [1] * 10, 4))
    loop.step()
    loop.handle(b"c", generate("b", [2] * 8, 2))
    run_out(loop)
    profile = call(loop, "stop_profile")
    assert profile is not None
    kinds = {kind: (steps.steps, steps.tokens) for kind, steps in profile.kinds.items()}
    assert kinds == {"prefill": (1, 10), "mixed": (1, 1 + 8), "decode": (2, 3)}
    for steps in profile.kinds.values():
        assert set(steps.phases) == PHASES
        assert 0 < sum(operator.seconds for operator in steps.operators) <= steps.phases["model"]
        assert {operator.label for operator in steps.operators} >= {"linear qkv", "attention", "rms_norm"}
    assert sum(sum(steps.phases.values()) for steps in profile.kinds.values()) <= profile.seconds


def test_work_adds_up_over_steps() -> None:
    loop = real_loop()
    call(loop, "start_profile")
    loop.handle(b"c", generate("a", [1] * 4, 3))
    run_out(loop)
    profile = call(loop, "stop_profile")
    assert profile is not None
    decode = {operator.label: operator for operator in profile.kinds["decode"].operators}
    assert decode["linear head"].operations == 2 * 2 * 32 * VOCAB
    assert decode["linear head"].bytes == 2 * 4 * 32 * VOCAB
    assert decode["attention"].operations == 4 * 32 * (5 + 6)


def test_what_decodes_share_has_to_be_read_once() -> None:
    """Two answers to one prompt of four blocks: a step has to read those once, and each answer's own tokens."""
    loop = real_loop()
    loop.handle(b"c", generate("a", [1] * 16, 3, n=2))
    loop.step()
    call(loop, "start_profile")
    run_out(loop)
    profile = call(loop, "stop_profile")
    assert profile is not None
    attention = {
        kind: next(operator for operator in steps.operators if operator.label == "attention")
        for kind, steps in profile.kinds.items()
    }
    # The second answer begins a step later, with the prompt's last token.
    for kind, keys in (("mixed", 17 + 16 - 16), ("decode", (18 + 17 - 16) + 18)):
        steps = attention.pop(kind)
        assert steps.bytes == 2 * 2 * 8 * 4 * keys, kind
        assert steps.operations == 4 * 32 * (keys + 16), kind
    assert not attention


def test_nothing_looks_when_it_is_off(tmp_path: Path) -> None:
    loop = boot(scripted_plan(tmp_path), lambda phase: None)
    assert type(loop._runner.laps) is Laps
    assert call(loop, "stop_profile") is None
    call(loop, "start_profile")
    loop.handle(b"c", generate("r", [1], 3))
    run_out(loop)
    profile = call(loop, "stop_profile")
    assert profile is not None
    assert profile.kinds["decode"].operators == ()  # a script has none
    assert type(loop._runner.laps) is Laps
