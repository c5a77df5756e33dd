"""Speculation over random traffic on a real (tiny) model: answers are those of each request alone, without drafts."""

from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.messages import GenerateRequest
from appliance.engine.runner import Runner
from appliance.kernels.interface import Executable

from .scripted_drafter import ScriptedDrafter
from .simulator import SPECULATION
from .test_runner import VOCAB, configure
from .test_speculation import REQUESTS, Answers, answers, summary, texts
from .tiny_program import tiny_executable

KEPT = [((None,), None), ((9, None), None), ((None,), 3), ((5, None), 0)]  # windows, and snapshots of states


@cache
def executable_of(config: SchedulerConfig) -> Executable:
    return tiny_executable(config, kernel_set="cpu-generic", windows=config.windows)


@cache
def alone(windows: tuple[int | None, ...], num_snapshots: int | None) -> Answers:
    """Returns the answers of requests that run one after the other, with room for all, and without drafts."""
    config = configure(windows=windows, num_snapshots=num_snapshots, num_blocks=1000, max_num_seqs=4)
    found: Answers = {}
    for request in REQUESTS:
        found |= answers(config, [request], executable=executable_of(config))[0]
    return found


@st.composite
def configs(draw: st.DrawFn) -> SchedulerConfig:
    windows, num_snapshots = draw(st.sampled_from(KEPT))
    num_seqs = draw(st.sampled_from([1, 2, 4, 8]))
    return configure(
        windows=windows,
        num_snapshots=num_snapshots,
        num_blocks=draw(st.sampled_from([18, 30, 400])) * len(windows),
        max_num_seqs=num_seqs,
        max_num_batched_tokens=draw(st.sampled_from([8, 20, 256])),
        max_num_sampled=num_seqs + draw(st.sampled_from([1, 4, 40])),
        num_draft_states=draw(st.sampled_from([1, 5, 40])),
        prefix_caching=draw(st.booleans()),
        expected_output=draw(st.sampled_from([0, 128])),
        speculation=SPECULATION,
    )


@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_answers_are_those_of_each_request_alone(data: st.DataObject) -> None:
    config = data.draw(configs())
    expected = alone(config.windows, config.num_snapshots)
    some = st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=6, unique_by=lambda each: each.request_id)
    chosen = data.draw(some)
    arrivals = [data.draw(st.integers(0, 8)) for _ in chosen]
    drafter = ScriptedDrafter(texts(REQUESTS, expected), data.draw(st.sampled_from(["right", "half", "wrong"])), VOCAB)
    found = served(config, list(zip(arrivals, chosen, strict=True)), drafter)
    names = {request.request_id for request in chosen}
    assert summary(found) == {key: value for key, value in summary(expected).items() if key[0] in names}


def served(config: SchedulerConfig, traffic: list[tuple[int, GenerateRequest]], drafter: ScriptedDrafter) -> Answers:
    """Runs requests that arrive before the steps of these numbers."""
    scheduler = Scheduler(config)
    runner = Runner(executable_of(config), config, VOCAB, drafters=[drafter])
    found: Answers = {}
    step = 0
    while traffic or scheduler.has_work:
        for _, request in [each for each in traffic if each[0] <= step]:
            scheduler.add(b"", request)
        traffic = [each for each in traffic if each[0] > step]
        step += 1
        plan = scheduler.schedule()
        if plan is None:
            continue
        for output in scheduler.commit(plan, runner.run(plan)).get(b"", []):
            found.setdefault((output.request_id, output.index), []).append(output)
        scheduler.check_invariants()
    assert scheduler.kv.pool.num_used == 0
    return found
