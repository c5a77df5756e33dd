"""Constraints and drafts: masks after drafts, forced tokens in their places, and answers as without drafts."""

import dataclasses

import msgspec
import pytest

from appliance.engine.drafting.model import DraftModel
from appliance.engine.drafting.vocabulary import VocabularyMap
from appliance.engine.grammar.interface import Matcher
from tests.engine.scripted_drafter import ScriptedDrafter
from tests.engine.simulator import SPECULATION
from tests.engine.test_draft_model import CAPS
from tests.engine.test_speculation import Answers, summary, texts
from tests.engine.tiny_program import tiny_executable

from .test_engine import MAX_LEN, PERSON, Engine, ask, configure, crowd, json_wish
from .vocabulary import VOCAB, spelled
from .walks import backend, constraint

WISH = json_wish(PERSON)
REQUESTS = [
    ask(WISH, "person"),
    ask(WISH, "greedy", temperature=0.0),
    ask(WISH, "told", seed=12, logprobs=1),
    ask(WISH, "many", seed=13, n=3),
    ask(WISH, "biased", seed=14, logit_bias={spelled("a")[0]: 3.0}),
    ask(WISH, "no bad words", seed=15, bad_words=((spelled("o")[0],),)),
    ask(WISH, "open-ended", seed=16, ignore_eos=True),
    ask(WISH, "stops", seed=17, stop_token_ids=(spelled("b")[0],)),
    ask(constraint("regex", "(ab|ba){2,30}[0-9]{3}"), "regex", seed=18),
    ask(msgspec.structs.replace(constraint("choice", '["yes", "no"]'), after="ll"), "reasoning", seed=19),
    ask(json_wish({"type": "array", "items": PERSON, "maxItems": 2}), "array", seed=20),
    *crowd(WISH),
]


@pytest.fixture(scope="module")
def off() -> Answers:
    return dict(Engine().run(*REQUESTS).outputs)


@pytest.mark.parametrize("kind", ["right", "wrong", "half"])
@pytest.mark.parametrize(
    "changes", [{}, {"num_blocks": 44, "expected_output": 0, "max_num_batched_tokens": 40}], ids=["roomy", "preempted"]
)
def test_answers_are_those_without_drafts(off: Answers, kind: str, changes: dict[str, object]) -> None:
    config = configure(**({"speculation": SPECULATION, "max_num_sampled": 100} | changes))
    engine = Engine(config, [ScriptedDrafter(texts(REQUESTS, off), kind, VOCAB)])
    assert summary(engine.run(*REQUESTS).outputs) == summary(off)
    stats = engine.scheduler.stats(0.0)
    assert stats.speculation is not None
    counts = stats.speculation.methods["scripted"]
    assert counts.accepted_tokens > 50 or kind == "wrong"
    assert bool(stats.num_preemptions) == bool(changes) or kind == "right"  # fast ones need less room at once


@pytest.mark.parametrize(
    "changes", [{}, {"num_blocks": 44, "expected_output": 0, "max_num_batched_tokens": 40}], ids=["roomy", "preempted"]
)
def test_answers_with_a_draft_model_are_those_without(off: Answers, changes: dict[str, object]) -> None:
    """It knows nothing of grammars, so its drafts are cut where they allow none of it."""
    caps = msgspec.structs.replace(CAPS, num_tokens=6)
    config = configure(**({"speculation": caps, "max_num_sampled": 100} | changes))
    own = dataclasses.replace(
        config, num_blocks=2000, max_num_sampled=config.max_num_seqs, max_num_batched_tokens=256, speculation=None
    )
    model = DraftModel(tiny_executable(own, VOCAB, MAX_LEN, "cpu-generic"), own, VocabularyMap.same(VOCAB, VOCAB))
    engine = Engine(config, draft_model=model)
    assert summary(engine.run(*REQUESTS).outputs) == summary(off)
    stats = engine.scheduler.stats(0.0)
    assert stats.speculation is not None
    assert stats.speculation.methods["draft_model"].accepted_tokens > 50


def test_a_matcher_takes_drafts_back() -> None:
    """Also over the end of the grammar, after which nothing may come."""
    matcher: Matcher = backend().compile(constraint("choice", '["ab", "abc"]')).start()
    assert matcher.num_fitting(spelled("abx")) == 2
    matcher.consume(spelled("a"))
    matcher.consume(spelled("bc"))
    assert matcher.is_complete
    matcher.roll_back(2)
    assert not matcher.is_complete
    assert matcher.num_fitting(spelled("b")) == 1
    matcher.consume(spelled("bc"))
    assert matcher.is_complete
