"""Speculation is exact: with drafts that are right, wrong or half right, each answer is what it is without any."""

from collections.abc import Iterable, Mapping, Sequence

import pytest

from appliance.engine.adapters import AdapterStore
from appliance.engine.core.adapter_slots import ServedAdapter
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.drafting.custom import CustomDrafter
from appliance.engine.drafting.history import History
from appliance.engine.drafting.interface import Drafter, ModelDrafter
from appliance.engine.drafting.ngram import NgramDrafter
from appliance.engine.drafting.suffix import GRAM, SuffixDrafter, SuffixLimits
from appliance.engine.messages import GenerateRequest, ProcessorCall, SequenceOutput
from appliance.engine.runner import Runner
from appliance.engine.step import DraftTokens, StepPlan
from appliance.kernels.interface import Executable

from .drafters import repeat
from .scripted_drafter import ScriptedDrafter
from .simulator import SPECULATION, generate
from .test_runner import PROMPT, VOCAB, configure
from .tiny_program import tiny_executable


def suffix_drafter() -> SuffixDrafter:
    return SuffixDrafter(SuffixLimits(), History(GRAM, 100, 1 << 16))


Answers = dict[tuple[str, int], list[SequenceOutput]]
KINDS = ("right", "wrong", "half")
NO_ADAPTERS: Mapping[str, ServedAdapter] = {}
SHIFT = "tests.engine.processors.Shift"


def speculating(**changes: object) -> SchedulerConfig:
    return configure(**({"max_num_sampled": 64, "speculation": SPECULATION} | changes))


def answers(
    config: SchedulerConfig,
    requests: Iterable[GenerateRequest],
    drafters: Sequence[Drafter] = (),
    executable: Executable | None = None,
    vocab: int = VOCAB,
    adapters: AdapterStore | None = None,
    served: Mapping[str, ServedAdapter] = NO_ADAPTERS,
    draft_model: ModelDrafter | None = None,
) -> tuple[Answers, Scheduler]:
    """Runs the requests together; a step takes no time that anybody measures."""
    scheduler = Scheduler(config)
    scheduler.adapters.served = served
    executable = executable or tiny_executable(config, kernel_set="cpu-generic")
    runner = Runner(executable, config, vocab, drafters=drafters, adapters=adapters, draft_model=draft_model)
    found: Answers = {}
    for request in requests:
        scheduler.add(b"", request)
    while (plan := next_plan(scheduler, runner)) is not None:
        assert all(chunk.length > 0 for chunk in plan.chunks)
        result = runner.run(plan)
        said = dict(zip((chunk.row for chunk in plan.chunks if chunk.sample), result.tokens, strict=True))
        assert all(len(entries) == len(said[row]) for row, entries in result.logprobs.items())
        for output in scheduler.commit(plan, result).get(b"", []):
            found.setdefault((output.request_id, output.index), []).append(output)
        scheduler.check_invariants()
    return found, scheduler


def next_plan(scheduler: Scheduler, runner: Runner) -> StepPlan | None:
    """Returns the next plan, after the drafts of a model that it may verify."""
    wish = scheduler.draft_wish()
    if wish is not None:
        scheduler.offer(wish, runner.draft(wish), 0.0)
    return scheduler.schedule()


def summary(found: Answers) -> dict[tuple[str, int], object]:
    """What clients see of the answers, however they are cut into steps."""
    return {
        key: (
            [token for output in outputs for token in output.token_ids],
            [entry for output in outputs for entry in output.logprobs or ()],
            (outputs[-1].finish_reason, outputs[-1].stop_token_id, outputs[-1].error),
        )
        for key, outputs in found.items()
    }


def texts(requests: Iterable[GenerateRequest], found: Answers) -> list[list[int]]:
    prompts = {request.request_id: request.prompt_token_ids for request in requests}
    return [
        [*prompts[name], *[token for output in outputs for token in output.token_ids]]
        for (name, _), outputs in found.items()
    ]


REQUESTS = [
    generate("greedy", PROMPT, 24, temperature=0.0),
    generate("drawn", PROMPT, 24, temperature=0.8, seed=3, logprobs=2),
    generate("several", PROMPT[:7], 16, temperature=0.8, top_p=0.9, top_k=20, seed=4, n=3),
    generate(
        "penalised", PROMPT, 24, temperature=0.8, seed=5, repetition_penalty=1.3, presence_penalty=0.4,
        frequency_penalty=0.2,
    ),
    generate("biased", PROMPT, 20, temperature=0.8, seed=6, logit_bias={7: 2.0, 9: -4.0}),
    generate("bad words", PROMPT, 20, temperature=0.8, seed=7, bad_words=((5,), (8, 9), (3, 4, 6))),
    generate("allowed", PROMPT, 20, temperature=0.8, seed=8, allowed_token_ids=tuple(range(2, 40)), logprobs=0),
    generate("stops", PROMPT, 40, temperature=0.9, seed=9, min_tokens=10, stop_token_ids=tuple(range(0, 64, 5))),
    generate("ends", PROMPT, 40, temperature=0.9, seed=10, eos=tuple(range(1, 64, 9))),
    generate("prompt", PROMPT, 12, temperature=0.8, seed=11, prompt_logprobs=1, logprobs=1),
    generate("long", [*PROMPT, *PROMPT, *PROMPT[::-1]], 20, temperature=0.8, seed=12),
    generate(
        "processed", PROMPT, 20, temperature=0.8, seed=13, logits_processors=(
            ProcessorCall(qualname="tests.engine.processors.even"),
        ),
    ),
    generate("processed by length", PROMPT, 20, temperature=0.8, seed=16, logits_processors=(
        ProcessorCall(qualname=SHIFT, is_constructor=True, args=(7,), kwargs={"after": 5}),
        ProcessorCall(qualname=SHIFT, is_constructor=True, args=(9, 120.0), kwargs={"after": 9}),
    )),
    generate("fails", PROMPT, 20, temperature=0.8, seed=14, logits_processors=(
        ProcessorCall(qualname="tests.engine.processors.fails_late"),
    )),
    generate("stuck", PROMPT, 20, seed=15, bad_words=tuple((at // 64, at % 64) for at in range(32 * 64))),
]  # fmt: skip


@pytest.fixture(scope="module")
def off() -> Answers:
    found = answers(configure(), REQUESTS)[0]
    assert {name for (name, _), outputs in found.items() if outputs[-1].error} == {"fails", "stuck"}
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_num_batched_tokens": 9},
        {"num_blocks": 36, "expected_output": 0},
        {"max_num_seqs": 2, "max_num_sampled": 12},
    ],
    ids=["roomy", "chunked", "preempted", "few"],
)
def test_answers_are_those_without_drafts(off: Answers, kind: str, changes: dict[str, object]) -> None:
    drafter = ScriptedDrafter(texts(REQUESTS, off), kind, VOCAB)
    on, scheduler = answers(speculating(**changes), REQUESTS, [drafter])
    assert summary(on) == summary(off)
    stats = scheduler.stats(0.0)
    counts = stats.speculation.methods["scripted"]
    assert counts.accepted_tokens >= 40 or kind == "wrong"
    assert counts.draft_tokens > 50
    assert bool(stats.num_preemptions) == ("num_blocks" in changes)
    assert scheduler.kv.pool.num_used == 0


FEW = [request for request in REQUESTS if request.request_id in ("greedy", "drawn", "several", "long", "stops")]
KEPT: dict[str, dict[str, object]] = {
    "windows": {"windows": (9, None), "num_blocks": 600},
    "states": {"num_snapshots": 6, "num_draft_states": 60},
    "few states": {"num_snapshots": 6, "num_draft_states": 3},
    "states and windows": {"num_snapshots": 0, "num_draft_states": 20, "windows": (9, None), "num_blocks": 600},
    "preempted states": {
        "num_snapshots": 2, "num_draft_states": 20, "num_blocks": 30, "expected_output": 0,
        "max_num_batched_tokens": 14,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", list(KEPT))
def test_states_and_windows_are_those_without_drafts(name: str, kind: str) -> None:
    """A state is that after the last token that was accepted, and a window keeps what verification may reach."""
    changes = KEPT[name]
    config = speculating(**changes)
    windows = config.windows
    plain = configure(**(changes | {"num_blocks": 1000, "num_draft_states": 0, "expected_output": 128}))
    off, _ = answers(plain, FEW, executable=tiny_executable(plain, kernel_set="cpu-generic", windows=windows))
    drafter = ScriptedDrafter(texts(FEW, off), kind, VOCAB)
    executable = tiny_executable(config, kernel_set="cpu-generic", windows=windows)
    on, scheduler = answers(config, FEW, [drafter], executable)
    assert summary(on) == summary(off)
    stats = scheduler.stats(0.0)
    assert stats.speculation is not None
    assert stats.speculation.methods["scripted"].draft_tokens > 10
    again, _ = answers(config, FEW, [drafter], executable)
    assert summary(again) == summary(off)


@pytest.mark.parametrize("drafter", [NgramDrafter(1, 3), suffix_drafter(), CustomDrafter(repeat)], ids=type)
def test_real_drafters_change_no_answer(off: Answers, drafter: Drafter) -> None:
    first, scheduler = answers(speculating(), REQUESTS, [drafter])
    assert summary(first) == summary(off)
    second, _ = answers(speculating(prefix_caching=False), REQUESTS, [drafter])
    assert summary(second) == summary(off)
    assert scheduler.stats(0.0).speculation.methods


def test_several_drafters_compete(off: Answers) -> None:
    """The one whose drafts were accepted so far is asked more and more."""
    wrong, right = (ScriptedDrafter(texts(REQUESTS, off), kind, VOCAB) for kind in ("wrong", "right"))
    on, scheduler = answers(speculating(), REQUESTS, [Named(wrong, "a"), Named(right, "b")])
    assert summary(on) == summary(off)
    methods = scheduler.stats(0.0).speculation.methods
    assert methods["b"].drafts > 3 * methods["a"].drafts
    assert methods["b"].accepted_tokens > 0 == methods["a"].accepted_tokens


class Named:
    """Names the method of another's drafts."""

    def __init__(self, inner: ScriptedDrafter, name: str) -> None:
        self._inner = inner
        self._name = name

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def propose(self, row: int, most: int) -> DraftTokens | None:
        draft = self._inner.propose(row, most)
        return None if draft is None else DraftTokens(draft.token_ids, self._name)
