"""Steps that need only few of the largest logits: which steps these are, and that a screen gives the same tokens."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.messages import GenerateRequest, SamplingParams
from appliance.engine.rows import Rows
from appliance.engine.step import NewRow
from appliance.kernels.interface import Executable, Screened, StepInputs
from appliance.kernels.logits import HostLogits, Logits

from .simulator import generate
from .test_processors import call
from .test_runner import PROMPT, Engine, configure, drawn, greedy
from .tiny_program import tiny_executable


def put(rows: Rows, row: int = 0, *, prompt_logprobs: int | None = None, grammar: Any = None, **sampling: Any) -> int:
    values = {"temperature": 0.0} | sampling
    new = NewRow(row, 1, [1, 2, 3], 3, SamplingParams(**values), (9,), 7, prompt_logprobs, grammar)
    rows.put(new)
    return int(rows.num_largest[row])


def empty_rows() -> Rows:
    return Rows(num_rows=4, max_len=16, block_size=4, vocab_size=64, most_largest=128)


@pytest.mark.parametrize("harmless", [{}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1}, {"seed": 3}, {"max_tokens": 4}])
def test_greedy_rows_ask_for_the_largest(harmless: dict[str, Any]) -> None:
    assert put(empty_rows(), **harmless) == 1


@pytest.mark.parametrize(
    "harmless", [{}, {"top_p": 0.5}, {"min_p": 0.1}, {"seed": 3}, {"temperature": 0.001}, {"temperature": 100.0}]
)
def test_rows_that_sample_of_few_ask_for_those(harmless: dict[str, Any]) -> None:
    for top_k in (1, 5, 63):
        assert put(empty_rows(), **{"temperature": 0.7, "top_k": top_k} | harmless) == top_k


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0.1}, {"temperature": 1.0, "top_p": 0.9}, {"temperature": 1.0, "top_k": 64},
        {"temperature": 0.0001, "top_k": 5},
    ],
    ids=str,
)  # fmt: skip
def test_rows_that_sample_of_many_ask_for_all(more: dict[str, Any]) -> None:
    assert put(empty_rows(), **more) == 0


@pytest.mark.parametrize("way", [{"temperature": 0.0}, {"temperature": 1.0, "top_k": 5}], ids=["greedy", "top_k"])
@pytest.mark.parametrize(
    "more",
    [
        {"logprobs": 0}, {"logprobs": 3}, {"prompt_logprobs": 0}, {"grammar": object()},
        {"repetition_penalty": 0.9}, {"presence_penalty": -0.5}, {"frequency_penalty": -0.5}, {"logit_bias": {3: 1.0}},
        {"allowed_token_ids": (3, 5)}, {"bad_words": ((3,),)}, {"min_tokens": 2},
        {"logits_processors": (call("even"),)},
    ],
    ids=lambda more: next(iter(more)),
)  # fmt: skip
def test_rows_that_ask_for_more(way: dict[str, Any], more: dict[str, Any]) -> None:
    rows = empty_rows()
    assert put(rows, **way, **more) == 0
    assert put(rows, **way) > 0, "the row's next sequence has nothing of that"


@pytest.mark.parametrize("penalty", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_penalties_that_lower_leave_few_to_ask_for(penalty: str) -> None:
    rows = empty_rows()
    assert put(rows, **{penalty: 1.2}) == 1
    assert put(rows, 2, **{"temperature": 0.7, "top_k": 5, penalty: 1.2}) == 5
    assert rows.is_penalised.tolist() == [True, False, True, False]
    assert put(rows) == 1
    assert not rows.is_penalised[0]


def test_a_mask_that_comes_later_asks_for_more() -> None:
    rows = empty_rows()
    assert put(rows)
    rows.open_mask(0)
    assert rows.num_largest[0] == 0


def test_top_k_of_many_asks_for_all() -> None:
    rows = Rows(num_rows=4, max_len=16, block_size=4, vocab_size=4096, most_largest=128)
    assert put(rows, temperature=1.0, top_k=128) == 128
    assert put(rows, temperature=1.0, top_k=129) == 0


def test_all_is_asked_of_a_set_without_a_screen() -> None:
    rows = Rows(num_rows=4, max_len=16, block_size=4, vocab_size=64)
    assert put(rows) == put(rows, temperature=1.0, top_k=5) == 0
    for kernel_set in ("cpu-generic", "reference"):
        plain = tiny_executable(configure(), kernel_set=kernel_set)
        assert not isinstance(plain, Screened) or plain.few_logits is None
        assert steps_of(greedy(max_tokens=3), executable=plain) == [None] * 3


def watched(executable: Executable, look: Callable[[StepInputs, np.ndarray], None]) -> Executable:
    """Calls look(inputs, logits) after each step that has logits."""
    run = executable.run

    def spy(inputs: StepInputs) -> Logits:
        logits = run(inputs)
        if len(inputs.sampled_rows):
            assert isinstance(logits, HostLogits)
            look(inputs, logits.values)
        return logits

    executable.run = spy  # type: ignore[method-assign]
    return executable


def screened() -> Executable:
    return tiny_executable(configure(), kernel_set="cpu-generic", screen_logits=True)


def steps_of(*requests: GenerateRequest, executable: Executable | None = None) -> list[list[int] | None]:
    """num_largest of each step that has logits."""
    asked: list[list[int] | None] = []

    def look(inputs: StepInputs, _: np.ndarray) -> None:
        asked.append(None if inputs.num_largest is None else inputs.num_largest.tolist())

    Engine(executable=watched(executable or screened(), look)).run(*requests)
    return asked


def test_steps_ask_for_what_their_rows_ask() -> None:
    assert steps_of(greedy(max_tokens=6)) == [[1]] * 6
    assert steps_of(drawn(max_tokens=6, top_k=0)) == [None] * 6
    assert steps_of(drawn(max_tokens=6, top_k=9)) == [[9]] * 6
    few = greedy(max_tokens=6), drawn(max_tokens=4, top_k=5, name="other")
    assert steps_of(*few) == [[1, 5]] * 4 + [[1]] * 2


def test_tokens_of_penalised_rows_do_not_count() -> None:
    steps: list[list[list[int]]] = []

    def look(inputs: StepInputs, _: np.ndarray) -> None:
        assert inputs.past is not None
        rows = zip(inputs.past.row, inputs.past.count, strict=True)
        steps.append([inputs.past.table[row, :count].tolist() for row, count in rows])

    plain, penalised = greedy(max_tokens=3), drawn(max_tokens=5, top_k=5, repetition_penalty=1.2, name="other")
    engine = Engine(executable=watched(screened(), look)).run(plain, penalised)
    tokens = engine.tokens("other")
    assert steps[:3] == [[[], [*PROMPT, *tokens[:count]]] for count in range(3)]
    assert steps[3:] == [[[*PROMPT, *tokens[:count]]] for count in (3, 4)]


def test_an_eighth_of_the_rows_that_want_all_decide_for_their_steps() -> None:
    wants_all = drawn(max_tokens=4, top_k=0, name="other")
    assert steps_of(greedy(max_tokens=6), wants_all) == [None] * 4 + [[1]] * 2
    few = [generate(f"few{number}", PROMPT, 6, temperature=0.0) for number in range(8)]
    assert steps_of(*few[:7], wants_all) == [None] * 4 + [[1] * 7] * 2
    assert steps_of(*few, wants_all) == [[*[1] * 8, 0]] * 4 + [[1] * 8] * 2


WAYS: list[dict[str, Any]] = [
    {"temperature": 0.0}, {"top_k": 8}, {"temperature": 0.0}, {"temperature": 0.7, "max_tokens": 4},
    {"top_k": 5, "min_p": 0.02}, {"top_k": 20, "top_p": 0.9, "temperature": 1.5},
    {"temperature": 0.0, "repetition_penalty": 1.4},
    {"top_k": 7, "presence_penalty": 0.5, "frequency_penalty": 0.3},
]  # fmt: skip


def answers_of(executable: Executable, config: SchedulerConfig, vocab: int) -> tuple[list[list[int]], list[np.ndarray]]:
    """The tokens of a request of each of WAYS, all at once, and the logits of each step."""
    logits: list[np.ndarray] = []
    engine = Engine(config, executable=watched(executable, lambda _, rows: logits.append(rows.copy())), vocab=vocab)
    own = ({"max_tokens": 20 + number, "seed": number} for number in range(len(WAYS)))
    requests = [
        generate(f"r{at}", PROMPT[at:], **each | way) for at, (each, way) in enumerate(zip(own, WAYS, strict=True))
    ]
    engine.run(*requests)
    return [engine.tokens(request.request_id) for request in requests], logits


@pytest.mark.parametrize("kernel_set", ["cpu-generic", "reference"])
def test_answers_are_the_same_with_a_screen(kernel_set: str) -> None:
    config, vocab = configure(), 32_768  # so many that few are computed
    plain = tiny_executable(config, vocab, kernel_set=kernel_set)
    screening = tiny_executable(config, vocab, kernel_set=kernel_set, screen_logits=True)
    answers, exact = answers_of(plain, config, vocab)
    others, screened = answers_of(screening, config, vocab)
    assert others == answers
    assert "logit_screen" not in plain.memory_bytes
    assert ("logit_screen" in screening.memory_bytes) == (kernel_set != "reference")
    is_approximate = [not np.array_equal(one, other) for one, other in zip(exact, screened, strict=True)]
    assert not any(is_approximate[:4]), "one of eight rows wants all"
    assert all(is_approximate[4:]) == (kernel_set != "reference")


def test_the_profile_tells_screened_heads_apart() -> None:
    config = configure()
    executable = tiny_executable(config, kernel_set="cpu-generic", screen_logits=True)
    engine = Engine(config, executable=executable)
    engine.runner.start_profile()
    assert executable.memory_bytes["logit_screen"] > 0
    counts = []
    for request in (greedy(max_tokens=4), drawn(max_tokens=3, top_k=0)):
        engine.scheduler.add(b"", request)
        while (plan := engine.scheduler.schedule()) is not None:
            engine.runner.laps.begin()
            engine.scheduler.commit(plan, engine.runner.run(plan))
            engine.runner.laps.end(plan)
            counts.append(plan.num_tokens)
    profile = engine.runner.stop_profile()
    assert profile is not None
    decode = {operator.label: operator for operator in profile.kinds["decode"].operators}
    heads = {label: decode[label] for label in decode if "head" in label}
    assert set(heads) == {"linear head", "linear head, screened"}
    assert heads["linear head, screened"].unit == "int8"
    assert heads["linear head, screened"].bytes == 3 * executable.memory_bytes["logit_screen"]
    assert heads["linear head"].operations * 3 == heads["linear head, screened"].operations * 2
