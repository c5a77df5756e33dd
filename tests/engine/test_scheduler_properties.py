"""Random traffic over tiny caches: invariants hold, every request finishes, and no schedule changes a token."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replace_struct

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.ordering import AskPolicy
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.messages import FinishReason, GenerateRequest

from .simulator import SPECULATION, Harness, Propose, generate, mixed

SHARED = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23]
WINDOWS: list[tuple[int | None, ...]] = [
    (None,), (None,), (1,), (3,), (9,), (20,), (None, None), (9, 9, None), (None, 3), (1, 20, None, 9), (3, 20),
    (),
]  # fmt: skip


@st.composite
def configs(draw: st.DrawFn) -> SchedulerConfig:
    chunked = draw(st.booleans())
    seqs = draw(st.integers(1, 6))
    block_size = draw(st.sampled_from([1, 2, 4, 8]))
    windows = draw(st.sampled_from(WINDOWS))
    has_states = not windows or draw(st.booleans())
    num_blocks = -(-draw(st.integers(36, 120)) * len(windows) // block_size)
    return SchedulerConfig(
        max_model_len=40,
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_seqs=seqs,
        max_num_batched_tokens=draw(st.integers(1, 60)) if chunked else draw(st.integers(40, 80)),
        max_num_sampled=seqs + draw(st.integers(0, 4)),
        chunked_prefill=chunked,
        max_num_partial_prefills=draw(st.integers(1, 3)),
        max_long_partial_prefills=draw(st.integers(1, 2)),
        long_prefill_token_threshold=draw(st.sampled_from([0, 3, 10])),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        prefix_caching=draw(st.booleans()),
        windows=windows,
        num_snapshots=draw(st.sampled_from([0, 1, 2, 5])) if has_states else None,
        num_swap_places=draw(st.sampled_from([0, 2, 9, 40, 400])),
        num_state_places=draw(st.integers(1, 3)) if has_states else 0,
        expected_output=draw(st.sampled_from([0, 4, 128])),
        hash_algorithm=draw(st.sampled_from(["builtin", "sha256", "sha256_cbor"])),
        target_step_s=draw(st.sampled_from([None, 0.02, 0.2])),
        late_share=draw(st.sampled_from([0.0, 0.04, 1.0])),
    )


@st.composite
def staged_configs(draw: st.DrawFn) -> SchedulerConfig:
    """Of several steps at once, as pipeline stages run them."""
    return replace(draw(configs()), num_lanes=draw(st.sampled_from([2, 3])))


@st.composite
def requests(draw: st.DrawFn, priorities: bool) -> list[tuple[int, GenerateRequest, int | None]]:
    """(step of arrival, request, step of abort) by arrival."""
    traffic = []
    for number in range(draw(st.integers(1, 10))):
        prompt = SHARED[: draw(st.integers(0, 13))] + draw(st.lists(st.integers(3, 99), min_size=1, max_size=20))
        request = generate(
            f"r{number}", prompt, draw(st.integers(1, 12)), n=draw(st.sampled_from([1, 1, 1, 2, 3])), seed=number,
            priority=draw(st.integers(-2, 2)) if priorities else 0, salt=draw(st.sampled_from([None, None, "s"])),
            eos=(50,), prompt_logprobs=draw(st.sampled_from([None, None, None, 1])),
        )  # fmt: skip
        request = replace_struct(request, is_streamed=draw(st.booleans()))
        abort = draw(st.one_of(st.none(), st.none(), st.integers(0, 40)))
        traffic.append((draw(st.integers(0, 20)), request, abort))
    return sorted(traffic, key=lambda entry: entry[0])


def expected(request: GenerateRequest, seed: int, max_len: int) -> list[int]:
    context = list(request.prompt_token_ids)
    while True:
        context.append(mixed(context, seed))
        done = len(context) - len(request.prompt_token_ids)
        if context[-1] in request.eos_token_ids or done >= request.sampling.max_tokens or len(context) >= max_len:
            return context[len(request.prompt_token_ids) :]


def guess(context: Sequence[int], seed: int) -> list[int]:
    """Returns up to six drafts; the first few are right, and the context decides how many."""
    drafts: list[int] = []
    kind = hash((tuple(context), seed, "guess"))
    for at in range(kind % 7):
        right = mixed([*context, *drafts], seed)
        drafts.append(right if at < kind // 7 % 7 else right + 1)
    return drafts


def drive(
    config: SchedulerConfig,
    traffic: list[tuple[int, GenerateRequest, int | None]],
    propose: Propose = lambda context, seed: [],
    *,
    place_s: float = 0.001,
    spoiled: float = 0.0,
    broken: Collection[int] = (),
    ask_policy: AskPolicy | None = None,
) -> Harness:
    """`spoiled`: the share of loads that find other bytes than were stored. broken: sequences whose logits are no
    numbers."""
    draws = Random(sum(len(request.prompt_token_ids) for _, request, _ in traffic))
    harness = Harness(Scheduler(config, ask_policy=ask_policy), propose=propose)
    harness.runner.place_s = place_s
    harness.runner.broken |= {*broken}
    harness.runner.spoils = lambda: draws.random() < spoiled
    pending, step = list(traffic), 0
    while pending or harness.scheduler.has_work:
        while pending and pending[0][0] <= step:
            harness.scheduler.add(b"", pending.pop(0)[1])
        dead = [(b"", request.request_id) for _, request, abort in traffic if abort == step]
        harness.abort(dead)
        harness.scheduler.check_invariants()
        if harness.step():
            plan = harness.steps[-1]
            harness.scheduler.learn(plan, 0.01 * len(plan.chunks) + 0.004 * plan.num_tokens)
        step += 1
        assert step < 5_000, "no progress"
    return harness


@pytest.mark.parametrize("propose", [lambda context, seed: [], guess], ids=["plain", "drafts"])
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_random_traffic(propose: Propose, data: st.DataObject) -> None:
    config = data.draw(configs())
    traffic = data.draw(requests(config.policy == "priority"))
    if propose is guess:
        extra, num_draft_states = data.draw(st.integers(0, 40)), data.draw(st.sampled_from([0, 1, 3, 8, 40]))
        config = replace(config, max_num_sampled=config.max_num_sampled + extra, speculation=SPECULATION)
        config = replace(config, num_draft_states=num_draft_states)
    place_s, spoiled = data.draw(st.sampled_from([0.001, 0.02])), data.draw(st.sampled_from([0.0, 0.0, 0.5, 1.0]))
    harness = drive(config, traffic, propose, place_s=place_s, spoiled=spoiled)
    assert harness.scheduler.kv.pool.num_used == 0, "blocks leaked"
    seeds = {new.sequence_id: new.seed for plan in harness.steps for new in plan.new_rows}
    assert len(seeds) <= sum(request.sampling.n for _, request, _ in traffic)
    for _, request, abort in traffic:
        for index in range(request.sampling.n):
            tokens, last = harness.tokens(request.request_id, index), harness.finish(request.request_id, index)
            seed = next(iter_seeds(request, index))
            full = expected(request, seed, config.max_sequence_len)
            if abort is None:
                assert last.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
                assert tokens == full
            else:
                assert tokens == full[: len(tokens)]


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_random_traffic_in_stages(data: st.DataObject) -> None:
    """Several steps have begun at once; and a sequence whose logits are no numbers spoils no other's tokens."""
    config = data.draw(staged_configs())
    traffic = data.draw(requests(config.policy == "priority"))
    broken = data.draw(st.sets(st.integers(0, 12), max_size=3))
    place_s, spoiled = data.draw(st.sampled_from([0.001, 0.02])), data.draw(st.sampled_from([0.0, 0.0, 0.5, 1.0]))
    harness = drive(config, traffic, broken=broken, place_s=place_s, spoiled=spoiled)
    assert harness.scheduler.kv.pool.num_used == 0, "blocks leaked"
    num_errors = 0
    for _, request, abort in traffic:
        for index in range(request.sampling.n):
            tokens, last = harness.tokens(request.request_id, index), harness.finish(request.request_id, index)
            full = expected(request, next(iter_seeds(request, index)), config.max_sequence_len)
            assert tokens == full[: len(tokens)]
            num_errors += last.finish_reason is FinishReason.ERROR
            if abort is None and last.finish_reason is not FinishReason.ERROR:
                assert tokens == full
    assert num_errors <= len(broken)


def test_steps_share_the_decodes_and_a_long_prompt() -> None:
    """Two stages work at once: on two halves of the decodes, and on two pieces of one prompt."""
    config = SchedulerConfig(
        max_model_len=64, block_size=4, num_blocks=200, max_num_seqs=8, max_num_batched_tokens=16, max_num_sampled=8,
        num_lanes=2,
    )  # fmt: skip
    harness = Harness(Scheduler(config))
    harness.scheduler.add(b"", generate("long", range(3, 43), 1))
    harness.step()
    assert [chunk.length for chunk in harness.steps[0].chunks] == [16]
    harness.step()
    assert harness.most_begun == 2
    harness.run()
    for number in range(6):
        harness.scheduler.add(b"", generate(f"r{number}", [9, number], 20))
    harness.run()
    decodes = [len(plan.chunks) for plan in harness.steps if all(chunk.is_decode for chunk in plan.chunks)]
    assert decodes.count(3) >= 30
    assert 6 not in decodes


def iter_seeds(request: GenerateRequest, index: int):
    from appliance.engine.core.requests import sibling_seed

    assert request.sampling.seed is not None
    yield sibling_seed(request.sampling.seed, index)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_outputs_do_not_depend_on_the_schedule(data: st.DataObject) -> None:
    config = data.draw(configs())
    traffic = [(at, request, None) for at, request, _ in data.draw(requests(config.policy == "priority"))]
    roomy = replace(
        config, num_blocks=4000, max_num_seqs=40, max_num_sampled=4000, max_num_batched_tokens=4000,
        chunked_prefill=False, prefix_caching=False, max_model_len=config.max_sequence_len,
    )  # fmt: skip
    tight, easy = drive(config, traffic), drive(roomy, traffic)
    for key in tight.outputs:
        assert tight.tokens(*key) == easy.tokens(*key)
        assert tight.finish(*key).finish_reason == easy.finish(*key).finish_reason


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_fcfs_starts_in_order(data: st.DataObject) -> None:
    """Without long-prompt rules and n > 1, first tokens come in the order of arrival."""
    config = replace(data.draw(configs()), policy="fcfs", long_prefill_token_threshold=0, max_num_partial_prefills=1)
    traffic = [(at, request, None) for at, request, _ in data.draw(requests(False)) if request.sampling.n == 1]
    harness = drive(config, traffic)
    admitted = [new.sequence_id for plan in harness.steps for new in plan.new_rows]
    firsts = list(dict.fromkeys(admitted))
    assert firsts == sorted(firsts)
