"""Constraints in the whole engine: a random model, hot sampling, crowds, chunks, preemption, and requests that fail."""

import json
from collections.abc import Sequence
from typing import Any

import jsonschema
import msgspec
import pytest

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.drafting.interface import Drafter, ModelDrafter
from appliance.engine.grammar.compiler import GrammarCompiler
from appliance.engine.grammar.gate import GrammarGate
from appliance.engine.grammar.schema import checked_schema
from appliance.engine.loop import EngineLoop
from appliance.engine.messages import (
    Constraint,
    ErrorKind,
    FinishReason,
    GenerateRequest,
    OutputBatch,
    SequenceOutput,
    Vocabulary,
)
from appliance.engine.runner import Runner
from appliance.engine.step import StepResult
from appliance.engine.validation import SamplingLimits
from tests.engine.simulator import generate
from tests.engine.tiny_program import tiny_executable

from .schemas import generated, written
from .vocabulary import EOS, FIRST_BYTE, VOCAB, token_bytes
from .walks import backend, constraint

MAX_LEN = 400
PROMPT = [40, 61, 72, 90, 33, 40, 41, 42, 43, 44, 45]
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["worker", "owner"]},
        "paid": {"type": "boolean"},
    },
    "required": ["name", "kind", "paid"],
    "additionalProperties": False,
}  # fmt: skip


def configure(**changes: object) -> SchedulerConfig:
    values: dict[str, object] = {
        "max_model_len": MAX_LEN, "block_size": 4, "num_blocks": 1600, "max_num_seqs": 16,
        "max_num_batched_tokens": 256, "max_num_sampled": 32,
    }  # fmt: skip
    return SchedulerConfig(**(values | changes))  # type: ignore[arg-type] # free keywords


class Engine:
    def __init__(
        self,
        config: SchedulerConfig | None = None,
        drafters: Sequence[Drafter] = (),
        draft_model: ModelDrafter | None = None,
    ) -> None:
        config = config or configure()
        self.scheduler = Scheduler(config)
        gate = GrammarGate(GrammarCompiler(lambda vocabulary: backend()))
        executable = tiny_executable(config, VOCAB, MAX_LEN, "cpu-generic")
        runner = Runner(executable, config, VOCAB, drafters=drafters, draft_model=draft_model)
        self.loop = EngineLoop(self.scheduler, runner, SamplingLimits(16, 20), grammars=gate)
        self.loop.handle(b"c", Vocabulary(tokenizer="{}", eos_token_ids=(EOS,)))
        self.outputs: dict[tuple[str, int], list[SequenceOutput]] = {}
        self.num_steps = 0

    def run(self, *requests: GenerateRequest) -> "Engine":
        self.outputs.clear()
        events = [event for request in requests for event in self.loop.handle(b"c", request)]
        while events or self.loop.has_work:
            for _, event in events:
                assert isinstance(event, OutputBatch)
                for output in event.outputs:
                    self.outputs.setdefault((output.request_id, output.index), []).append(output)
            events = self.loop.step() if self.loop.has_work else []
            self.scheduler.check_invariants()
        self.num_steps = self.scheduler.stats(0.0).num_steps
        return self

    def tokens(self, name: str = "r", index: int = 0) -> list[int]:
        return [token for output in self.outputs[name, index] for token in output.token_ids]

    def text(self, name: str = "r", index: int = 0) -> str:
        said = [token for token in self.tokens(name, index) if token != EOS]
        return b"".join(token_bytes()[token] for token in said).decode(errors="replace")

    def last(self, name: str = "r", index: int = 0) -> SequenceOutput:
        return self.outputs[name, index][-1]


def ask(wish: Constraint | None, name: str = "r", prompt: Sequence[int] = PROMPT, **sampling: Any) -> GenerateRequest:
    values: dict[str, Any] = {"temperature": 2.0, "seed": 11, **sampling}
    request = generate(name, prompt, values.pop("max_tokens", 200), eos=(EOS,), **values)
    return msgspec.structs.replace(request, constraint=wish)


def json_wish(schema: Any, whitespace: str | None = "") -> Constraint:
    source = msgspec.json.encode(checked_schema(schema)).decode()
    return constraint("json_schema", source, whitespace=whitespace)


def crowd(wish: Constraint | None = None) -> list[GenerateRequest]:
    """Returns requests of which every second one follows `wish`."""
    prompts = {number: [FIRST_BYTE + number] * (3 + number) for number in range(12)}
    return [
        ask(wish if number % 2 else None, f"other{number}", prompt, seed=number, max_tokens=20)
        for number, prompt in prompts.items()
    ]


def test_a_hot_random_model_cannot_leave_its_schema() -> None:
    schemas = [*generated(), *written()][::6]
    requests = [ask(json_wish(schema), name, seed=len(name), n=2) for name, schema in schemas]
    engine = Engine().run(*requests)
    ended = 0
    for name, schema in schemas:
        for index in range(2):
            if engine.last(name, index).finish_reason is FinishReason.STOP:
                ended += 1
                jsonschema.Draft202012Validator(schema).validate(json.loads(engine.text(name, index)))
            else:
                assert engine.last(name, index).finish_reason is FinishReason.LENGTH, engine.last(name, index)
    assert ended > len(schemas)


def test_an_answer_is_the_same_alone_in_a_crowd_in_chunks_and_after_preemption() -> None:
    request = ask(json_wish(PERSON))
    alone = Engine().run(request)
    assert alone.last().finish_reason is FinishReason.STOP
    jsonschema.validate(json.loads(alone.text()), PERSON)
    tight = {"num_blocks": 20, "max_num_batched_tokens": 12, "max_num_sampled": 16}
    for changes in ({}, {"prefix_caching": False}, {"max_num_batched_tokens": 16}, tight):
        engine = Engine(configure(**changes)).run(*crowd(json_wish(PERSON)), request)
        assert engine.tokens() == alone.tokens(), changes
    assert engine.scheduler.stats(0.0).num_preemptions > 0


def test_forced_tokens_are_those_that_masks_would_enforce() -> None:
    """With log-probabilities every token is sampled; without, the engine skips those that are forced."""
    for seed in range(4):
        skipping, sampling = Engine(), Engine()
        skipping.run(ask(json_wish(PERSON), seed=seed))
        sampling.run(ask(json_wish(PERSON), seed=seed, logprobs=1))
        assert skipping.tokens() == sampling.tokens()
        assert skipping.num_steps < sampling.num_steps == len(sampling.tokens())
        assert all(len(output.token_ids) == 1 for output in sampling.outputs["r", 0])


def test_a_whole_answer_may_be_forced() -> None:
    engine = Engine().run(ask(constraint("choice", '["the only answer there is"]')))
    assert engine.text() == "the only answer there is"
    assert engine.last().finish_reason is FinishReason.STOP
    assert engine.num_steps < 4
    cut = Engine().run(ask(constraint("choice", '["the only answer there is"]'), max_tokens=5))
    assert len(cut.tokens()) == 5
    assert cut.last().finish_reason is FinishReason.LENGTH


def test_ends_and_minimums() -> None:
    many = constraint("regex", "a{1,30}")
    unbounded = constraint("regex", "a*")
    assert len(Engine().run(ask(many, ignore_eos=True)).tokens()) == 30, "only the grammar's end is an end"
    least = Engine().run(ask(many, min_tokens=12)).tokens()
    assert EOS not in least[:11]
    assert len(least) >= 12
    stop = FIRST_BYTE + ord("!")
    stopped = Engine().run(ask(unbounded, ignore_eos=True, stop_token_ids=(stop,), logit_bias={stop: 5.0}))
    assert stopped.last().stop_token_id == stop
    assert set(stopped.tokens()[:-1]) <= {FIRST_BYTE + ord("a")}
    exact = Engine().run(ask(constraint("regex", "abc"), min_tokens=50))
    assert (exact.text(), exact.last().finish_reason) == ("abc", FinishReason.STOP)


def test_masks_of_both_kinds_hold() -> None:
    allowed = tuple(FIRST_BYTE + ord(letter) for letter in 'abc"')
    engine = Engine().run(ask(json_wish({"type": "string", "minLength": 3, "maxLength": 5}), allowed_token_ids=allowed))
    assert set(json.loads(engine.text())) <= set("abc")


def test_a_request_that_fails_leaves_its_neighbours_as_they_were() -> None:
    neighbours = crowd(json_wish(PERSON))
    calm = Engine().run(*neighbours)
    expected = {key: calm.tokens(*key) for key in calm.outputs}
    nothing_left = ask(constraint("regex", "xyz"), "stuck", bad_words=((FIRST_BYTE + ord("y"),),))
    uncompiled = ask(constraint("regex", "(("), "broken")
    wide = (
        "start: s+\ns: "
        + " | ".join(f"r{i}" for i in range(2500))
        + "".join(f'\nr{i}: "a" /{i}x*/' for i in range(2500))
    )
    engine = Engine().run(nothing_left, uncompiled, ask(constraint("lark", wide), "wide"), *neighbours)
    assert engine.last("stuck").error_kind is ErrorKind.INVALID
    assert (engine.last("broken").error_kind, engine.last("broken").error_field) == (ErrorKind.INVALID, "f")
    assert engine.last("wide").finish_reason is FinishReason.ERROR
    assert {key: engine.tokens(*key) for key in expected} == expected


def test_a_row_that_is_reused_is_free_again() -> None:
    plain = Engine(configure(max_num_seqs=1)).run(ask(None, max_tokens=10)).tokens()
    engine = Engine(configure(max_num_seqs=1))
    engine.run(ask(json_wish(PERSON)))
    assert engine.run(ask(None, max_tokens=10)).tokens() == plain
    assert engine.outputs["r", 0][0].num_cached_tokens == 8


@pytest.mark.parametrize("n", [1, 3])
def test_siblings_have_states_of_their_own(n: int) -> None:
    engine = Engine().run(ask(json_wish(PERSON), n=n))
    answers = [json.loads(engine.text(index=index)) for index in range(n)]
    assert all(jsonschema.Draft202012Validator(PERSON).is_valid(answer) for answer in answers)
    assert len({engine.text(index=index) for index in range(n)}) == n


def test_forced_tokens_run_with_the_decodes_before_any_prompt() -> None:
    scheduler = Scheduler(configure(max_num_batched_tokens=8))
    scheduler.add(b"c", ask(None, "one", [5, 6, 7]))
    plan = scheduler.schedule()
    assert plan is not None
    scheduler.commit(plan, StepResult(plan.step, [[9, 10, 11, 12]]))
    scheduler.add(b"c", ask(None, "two", list(range(30, 60))))
    plan = scheduler.schedule()
    assert plan is not None
    assert [(chunk.start, chunk.length, chunk.sample) for chunk in plan.chunks] == [(3, 4, True), (0, 4, False)]
    scheduler.check_invariants()
