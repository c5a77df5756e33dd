"""A draft model changes no answer, agrees where it is the same model, and follows rows through whatever they do."""

from dataclasses import replace

import numpy as np
import pytest

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.drafting.model import DraftModel
from appliance.engine.drafting.vocabulary import VocabularyMap
from appliance.engine.messages import SamplingParams, SpeculationCaps
from appliance.kernels.interface import Executable, StepInputs
from appliance.kernels.logits import Logits

from .test_runner import VOCAB, configure
from .test_speculation import FEW, KEPT, REQUESTS, Answers, answers, summary
from .tiny_program import tiny_executable

CAPS = SpeculationCaps(num_tokens=5, adaptive=False, looks_up=False, model_method="draft_model", model_share=0.3)
UNLIKE = ("biased", "processed", "processed by length")  # whose answers the draft model cannot know


def drafting(**changes: object) -> SchedulerConfig:
    return configure(**({"max_num_sampled": 64, "speculation": CAPS} | changes))


def draft_model(config: SchedulerConfig, noise: float = 0.0, num_blocks: int = 600) -> DraftModel:
    own = replace(
        config,
        num_blocks=num_blocks,
        max_num_sampled=config.max_num_seqs,
        max_num_batched_tokens=max(64, config.max_num_batched_tokens),
        windows=(None,),
        num_snapshots=None,
        num_draft_states=0,
        speculation=None,
    )
    return DraftModel(
        tiny_executable(own, kernel_set="cpu-generic", noise=noise), own, VocabularyMap.same(VOCAB, VOCAB)
    )


@pytest.fixture(scope="module")
def off() -> Answers:
    return answers(configure(), REQUESTS)[0]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_num_batched_tokens": 9},
        {"num_blocks": 36, "expected_output": 0},
        {"max_num_seqs": 2, "max_num_sampled": 12},
        {"prefix_caching": False},
    ],
    ids=["roomy", "chunked", "preempted", "few", "uncached"],
)
@pytest.mark.parametrize("noise", [0.0, 0.3], ids=["itself", "nearly"])
def test_answers_are_those_without_drafts(off: Answers, changes: dict[str, object], noise: float) -> None:
    config = drafting(**changes)
    on, scheduler = answers(config, REQUESTS, draft_model=draft_model(config, noise))
    assert summary(on) == summary(off)
    counts = scheduler.stats(0.0).speculation.methods["draft_model"]
    assert counts.draft_tokens > 50
    assert counts.accepted_tokens > 0.2 * counts.draft_tokens
    assert scheduler.kv.pool.num_used == 0


def test_the_model_itself_draws_the_same(off: Answers) -> None:
    """Draws are numbered by position, and penalties and bans see the tokens before them, so all drafts are right."""
    config = drafting()
    alike = [request for request in REQUESTS if request.request_id not in (*UNLIKE, "fails", "stuck")]
    on, scheduler = answers(config, alike, draft_model=draft_model(config))
    counts = scheduler.stats(0.0).speculation.methods["draft_model"]
    assert counts.accepted_tokens >= 0.98 * counts.draft_tokens > 100
    assert summary(on) == {
        key: value for key, value in summary(off).items() if (key[0],) in {(r.request_id,) for r in alike}
    }


@pytest.mark.parametrize("name", list(KEPT))
def test_states_and_windows_are_those_without_drafts(name: str) -> None:
    changes = KEPT[name]
    config = drafting(**changes)
    plain = configure(**(changes | {"num_blocks": 1000, "num_draft_states": 0, "expected_output": 128}))
    windows = config.windows
    off, _ = answers(plain, FEW, executable=tiny_executable(plain, kernel_set="cpu-generic", windows=windows))
    executable = tiny_executable(config, kernel_set="cpu-generic", windows=windows)
    on, scheduler = answers(config, FEW, executable=executable, draft_model=draft_model(config, 0.1))
    assert summary(on) == summary(off)
    assert scheduler.stats(0.0).speculation.methods["draft_model"].draft_tokens > 10


def test_rows_without_blocks_in_the_draft_models_cache_are_answered_without_drafts(off: Answers) -> None:
    config = drafting()
    model = draft_model(config, num_blocks=12)
    on, scheduler = answers(config, REQUESTS, draft_model=model)
    assert summary(on) == summary(off)
    assert scheduler.stats(0.0).speculation.methods["draft_model"].draft_tokens > 10
    assert model._blocks.num_free == 12


def test_a_vocabulary_is_translated_both_ways() -> None:
    target, draft = ["<s>", "a", "b", "c", "d"], ["d", "c", "b", "a", "z", "a"]
    words = VocabularyMap.by_text(target, draft, num_target=6, num_draft=8)
    assert words.translate([1, 2, 3]) == [3, 2, 1]
    assert words.translate([1, 0]) is None
    assert words.back(np.array([0, 1, 4, 2], np.int32)) == [4, 3], "a draft ends before a token that is none here"
    assert words.known([0, 1, 5]) == (3,)
    sampling = SamplingParams(
        logprobs=3,
        logit_bias={1: 2.0, 0: 1.0},
        bad_words=((1, 2), (0, 1)),
        allowed_token_ids=(0, 4),
        stop_token_ids=(2,),
    )
    found = words.sampling(sampling)
    assert (found.logprobs, found.logit_bias, found.bad_words) == (None, {3: 2.0}, ((3, 2),))
    assert (found.allowed_token_ids, found.stop_token_ids) == ((0,), (2,))


def test_a_model_with_other_ids_drafts_by_texts(off: Answers) -> None:
    """The draft model has the same tokens at other places: with the head and the table moved it would be the same."""
    shift = [(token + 7) % VOCAB for token in range(VOCAB)]
    moved = VocabularyMap(np.array(shift, np.int32), np.argsort(shift).astype(np.int32))
    config = drafting()
    model = draft_model(config)
    model._vocabulary = moved
    on, scheduler = answers(config, REQUESTS, draft_model=model)
    assert summary(on) == summary(off)
    assert scheduler.stats(0.0).speculation.methods["draft_model"].draft_tokens > 50


class Broken:
    """An executable that fails at some run."""

    def __init__(self, inner: Executable, at: int) -> None:
        self._inner = inner
        self._left = at

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def run(self, inputs: StepInputs) -> Logits:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("the draft model fails")
        return self._inner.run(inputs)


@pytest.mark.parametrize("at", [0, 3, 12])
def test_a_draft_model_that_fails_costs_its_drafts(off: Answers, at: int) -> None:
    config = drafting()
    model = draft_model(config)
    model._executable = Broken(model._executable, at)  # type: ignore[assignment] # it has what it hands on
    on, _ = answers(config, REQUESTS, draft_model=model)
    assert summary(on) == summary(off)
