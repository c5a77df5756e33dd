"""The recorder of steps: what it keeps, where it ends, and the document for Perfetto."""

from itertools import pairwise

from msgspec.structs import replace

from appliance.engine.chrome_trace import chrome_trace
from appliance.engine.profile import added_up
from appliance.engine.step_trace import StepRecorder, StepTrace, TracedChunk, TracedPhase, TracedStep

from .simulator import generate
from .test_profiler import real_loop, run_out

STEP = TracedStep(
    number=7,
    kind="mixed",
    phases=(
        TracedPhase("between", 1.0, 2.0),
        TracedPhase("schedule", 2.0, 2.5),
        TracedPhase("model", 2.5, 4.0),
        TracedPhase("sample", 4.0, 4.5),
    ),
    operators=(("embed", 0.5), ("attention", 0.75)),
    chunks=(TracedChunk(0, None, 1, is_decode=True), TracedChunk(3, 9, 20, is_decode=False)),
)


def spans(tid: int, trace: StepTrace) -> list[tuple[str, float, float]]:
    found = chrome_trace("mine", [trace])["traceEvents"]
    return [(each["name"], each["ts"], each["dur"]) for each in found if each["ph"] == "X" and each["tid"] == tid]


def test_the_document_has_a_track_for_each_kind_of_span() -> None:
    trace = StepTrace((STEP,), num_dropped=2)
    assert spans(1, trace) == [("mixed", 2e6, 2.5e6)]  # the time since the step before is not the step's
    assert spans(2, trace) == [("schedule", 2e6, 5e5), ("model", 2.5e6, 1.5e6), ("sample", 4e6, 5e5)]
    assert spans(3, trace) == [("embed", 2.5e6, 5e5), ("attention", 3e6, 7.5e5)]
    assert spans(13, trace) == [("prompt", 2e6, 2.5e6)]
    document = chrome_trace("mine", [trace, trace])
    assert document["otherData"] == {"steps_left_out": 4}
    titles = [each["args"]["name"] for each in document["traceEvents"] if each["name"] == "process_name"]
    assert titles == ["mine, replica 0", "mine, replica 1"]


def test_spans_of_a_track_do_not_overlap() -> None:
    # The model of the second step ran beside the first one, so its operators took more time than is left of it.
    first = replace(STEP, operators=(("embed", 1.25), ("attention", 2.0)))
    second = replace(STEP, phases=(TracedPhase("model", 4.5, 5.0),), operators=(("embed", 0.1 / 3), ("rope", 0.7 / 3)))
    third = replace(second, phases=(TracedPhase("model", 9.0, 9.5),))
    found = spans(3, StepTrace((first, second, third), num_dropped=0))
    assert [name for name, _, _ in found] == ["embed", "attention", *["embed", "rope"] * 2]
    assert [at for _, at, _ in found[::2]] == [2.5e6, 5.75e6, 9e6]
    assert all(round(at + lasting, 3) <= later for (_, at, lasting), (_, later, _) in pairwise(found))


def test_a_full_trace_keeps_what_it_has() -> None:
    recorder = StepRecorder(most_events=5)
    for number in range(4):
        recorder.phase("model", 1.0, 1.5)
        recorder.phase("model", 1.5, 2.0)
        recorder.end(number, "decode", [("embed", 0.0)], [(0, 1, True)])
    trace = recorder.finish()
    assert [(step.number, step.phases) for step in trace.steps] == [(0, (TracedPhase("model", 1.0, 2.0),))]
    assert trace.num_dropped == 3


def test_every_step_of_an_engine_is_traced_with_its_operators() -> None:
    loop = real_loop()
    loop._runner.start_profile(traced=True)
    loop.handle(b"c", generate("a", [1] * 10, 4))
    run_out(loop)
    profile = loop._runner.stop_profile()
    assert profile is not None
    assert profile.trace is not None
    assert [step.kind for step in profile.trace.steps] == ["prefill", "decode", "decode", "decode"]
    traced = sum(seconds for step in profile.trace.steps for _, seconds in step.operators)
    summed = sum(operator.seconds for kind in profile.kinds.values() for operator in kind.operators)
    assert abs(traced - summed) < 1e-9
    whole = added_up([profile])
    assert whole is not None
    assert whole.trace is None  # of a sum there is none
