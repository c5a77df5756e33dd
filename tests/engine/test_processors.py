"""Logits processors that requests name: their changes, their failures, and the rows that are affected."""

from typing import Any

import numpy as np
import pytest

from appliance.base.plugins import PluginError
from appliance.engine.loop import EngineLoop
from appliance.engine.messages import (
    ErrorKind,
    FinishReason,
    GenerateRequest,
    OutputBatch,
    ProcessorCall,
    SequenceOutput,
)
from appliance.engine.processors import ProcessorError, RowProcessors, make_processor, planned_calls
from appliance.engine.validation import SamplingLimits

from .simulator import generate
from .test_runner import PROMPT, Engine, configure

HERE = "tests.engine.processors"


def call(name: str, *args: object, **kwargs: object) -> ProcessorCall:
    is_constructor = name[0].isupper()
    return ProcessorCall(qualname=f"{HERE}.{name}", is_constructor=is_constructor, args=args, kwargs=kwargs)


def ask(request_id: str = "r", *calls: ProcessorCall, **sampling: Any) -> GenerateRequest:
    length, temperature = sampling.pop("length", 8), sampling.pop("temperature", 0.0)
    return generate(request_id, PROMPT, length, temperature=temperature, logits_processors=calls, **sampling)


def test_logits_are_changed_in_place_or_anew() -> None:
    run = Engine()
    plain = run.run(ask()).tokens()
    assert any(token % 2 for token in plain)
    assert not any(token % 2 for token in run.run(ask("r", call("even"))).tokens())
    assert run.run(ask("r", call("echo"))).tokens() == PROMPT[:8]
    assert run.run(ask("r", call("Shift", 7, after=2))).tokens() == [*plain[:2], *[7] * 6]


def test_they_run_in_order_and_beside_the_requests_own_bias() -> None:
    run = Engine()
    assert 7 not in run.run(ask("r", call("Shift", 7), call("even"))).tokens()
    both = run.run(ask("r", call("Shift", 7, by=60.0), logit_bias={7: 60.0, 9: 90.0})).tokens()
    assert both == [7] * 8, "60 and 60 for one token are more than 90 for another"


def test_raw_logprobs_stay_the_models() -> None:
    run = Engine()
    plain = run.run(ask(logprobs=3, length=1)).logprobs()[0]
    shifted = run.run(ask("r", call("Shift", 7), logprobs=3, length=1)).logprobs()[0]
    assert shifted.token_ids[0] == 7
    assert shifted.token_ids[1:] == plain.token_ids[1:]
    assert shifted.logprobs[1:] == pytest.approx(plain.logprobs[1:], abs=1e-5)


def test_neighbours_are_what_they_are_alone() -> None:
    run, drawn = Engine(), {"temperature": 0.8, "seed": 3}
    alone = {name: run.run(ask(name, **drawn)).tokens(name) for name in "ab"}
    together = run.run(ask("a", **drawn), ask("x", call("fails_late")), ask("y", call("even")), ask("b", **drawn))
    assert {name: together.tokens(name) for name in "ab"} == alone


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fails_late", "LookupError: no fourth token"),
        ("short", "answered the shape"),
        ("not_numbers", "NaN or infinite"),
        ("forgets", "it returned None"),
        ("forbids_all", "excludes every token"),
    ],
)
def test_one_that_fails_ends_its_request_alone(name: str, words: str) -> None:
    run = Engine().run(ask("bad", call(name)), ask("good"))
    last = run.last("bad")
    assert (last.finish_reason, last.error_kind) == (FinishReason.ERROR, ErrorKind.INTERNAL)
    assert f"{HERE}.{name}" in str(last.error)
    assert words in str(last.error)
    assert len(run.tokens("good")) == 8


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (ProcessorCall(qualname="no.such.thing"), "ModuleNotFoundError"),
        (call("nothing"), "AttributeError"),
        (call("no_arguments"), "takes 0 arguments"),
        (call("Shift"), "TypeError"),
        (call("NOT_A_PROCESSOR"), "TypeError"),
    ],
)
def test_what_cannot_be_made_is_said(wrong: ProcessorCall, words: str) -> None:
    with pytest.raises(ProcessorError, match=words) as error:
        make_processor(wrong)
    assert wrong.qualname in str(error.value)


@pytest.mark.parametrize(
    ("pattern", "name", "words"),
    [
        (None, f"{HERE}.even", "logits_processor_pattern is not set"),
        (r"tests\.engine\.", f"{HERE}.even", "matches whole"),
        (".*", "os.system; x", "matches whole"),
        (".*", "even", "matches whole"),
        (".*", "a." + "b" * 300, "matches whole"),
        (r"tests\..*", f"{HERE}.nothing", "has no attribute"),
    ],
)
def test_the_engine_itself_refuses(pattern: str | None, name: str, words: str) -> None:
    run = Engine()
    loop = EngineLoop(run.scheduler, run.runner, SamplingLimits(4, 4, pattern))
    [(_, event)] = loop.handle(b"", ask("r", ProcessorCall(qualname=name)))
    assert isinstance(event, OutputBatch)
    [output] = event.outputs
    assert (output.error_kind, output.error_field) == (ErrorKind.INVALID, "logits_processors")
    assert words in str(output.error)


def test_a_preempted_row_gets_its_processors_again() -> None:
    requests = [ask(name, call("even"), length=16) for name in "ab"]
    tight, wide = Engine(configure(num_blocks=9, max_num_seqs=2)).run(*requests), Engine().run(*requests)
    assert tight.scheduler.stats(0.0).num_preemptions > 0
    assert [tight.tokens(name) for name in "ab"] == [wide.tokens(name) for name in "ab"]
    assert all(np.array(tight.tokens("a")) % 2 == 0)


class Planned:
    """A loop whose plan names processors for every request."""

    def __init__(self, *names: str, timeout_s: float = 30.0) -> None:
        self.run = Engine()
        rows = self.run.runner._rows
        calls = planned_calls([f"{HERE}.{name}" for name in names])
        processors = RowProcessors(rows, calls, timeout_s)
        self.run.runner.processors = self.run.runner._sampler._processors = processors
        self.loop = EngineLoop(self.run.scheduler, self.run.runner, SamplingLimits(4, 4, r"tests\..*"))

    def ask(self, *requests: GenerateRequest) -> dict[str, list[SequenceOutput]]:
        events = [event for request in requests for event in self.loop.handle(b"", request)]
        while self.loop.has_work:
            events += self.loop.step()
        found: dict[str, list[SequenceOutput]] = {}
        for _, event in events:
            assert isinstance(event, OutputBatch)
            for output in event.outputs:
                found.setdefault(output.request_id, []).append(output)
        return found


def tokens_of(outputs: list[SequenceOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def test_those_of_the_plan_change_every_request_before_its_own() -> None:
    planned = Planned("even", "Greedy")
    found = planned.ask(ask("a"), ask("b", temperature=1.0, seed=3), ask("c", call("Shift", 7)))
    assert all(token % 2 == 0 for token in tokens_of(found["a"]) + tokens_of(found["b"]))
    assert tokens_of(found["a"]) == tokens_of(found["b"]), "Greedy leaves one"
    assert len(tokens_of(found["c"])) == 8


def test_one_of_the_plan_that_fails_is_named() -> None:
    found = Planned("fails_late").ask(ask("a"))
    assert len(tokens_of(found["a"])) == 3
    assert f"{HERE}.fails_late: LookupError: no fourth token" in str(found["a"][-1].error)


def test_one_that_hangs_ends_its_request_by_name_and_no_other() -> None:
    planned = Planned(timeout_s=0.2)
    found = planned.ask(ask("bad", call("hangs")), ask("good", call("even")))
    assert (found["bad"][-1].finish_reason, found["bad"][-1].error_kind) == (FinishReason.ERROR, ErrorKind.INTERNAL)
    assert f"{HERE}.hangs took more than 0.2 s" in str(found["bad"][-1].error)
    assert len(tokens_of(found["good"])) == 8


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", "cannot be imported: AttributeError"),
        ("Shift", "missing 1 required positional argument"),
        ("NOT_A_PROCESSOR", "TypeError"),
        ("no_arguments", "takes 0 arguments"),
        ("OfBatches", "a processor of whole batches, as vLLM has them"),
    ],
)
def test_what_the_plan_names_and_cannot_be_ends_the_start(name: str, words: str) -> None:
    with pytest.raises(PluginError, match=words) as error:
        planned_calls([f"{HERE}.{name}"])
    assert f"decoding.logits_processors: {HERE}.{name}" in str(error.value)
