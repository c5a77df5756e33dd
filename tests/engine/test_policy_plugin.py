"""Scheduling policies of the operator's own: any order gives the same tokens, and one that fails costs nothing."""

import logging
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.base.plugin_types import OpenSequence
from appliance.base.plugins import PluginError
from appliance.engine.core.ordering import AskPolicy
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.messages import GenerateRequest
from appliance.engine.policy_plugin import load_policy

from .simulator import SPECULATION, Harness, generate
from .test_scheduler import harness, prompt
from .test_scheduler_properties import configs, drive, guess, requests, staged_configs

HERE = "tests.engine.policies."
FAILING = ["Raises", "LeavesOneOut", "Repeats", "SaysWords", "SaysNothing"]


def random_policy(draws: Random, share_of_faults: float) -> AskPolicy:
    """Another order each time, and now and then an answer that is none."""

    def ask(sequences: list[OpenSequence]) -> list[int]:
        order = [each.id for each in draws.sample(sequences, len(sequences))]
        if draws.random() < share_of_faults:
            return draws.choice([order[1:], [*order, 7], [0] * len(order), []])
        return order

    return ask


@pytest.mark.parametrize("kind", ["plain", "drafts", "stages"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_no_order_changes_a_token(kind: str, data: st.DataObject) -> None:
    config = data.draw(staged_configs() if kind == "stages" else configs())
    drawn = data.draw(requests(config.policy == "priority"))
    traffic: list[tuple[int, GenerateRequest, int | None]] = [(at, request, None) for at, request, _ in drawn]
    propose = guess if kind == "drafts" else lambda context, seed: []
    if kind == "drafts":
        config = replace(
            config, max_num_sampled=config.max_num_sampled + 9, speculation=SPECULATION, num_draft_states=3
        )
    draws, faults = Random(data.draw(st.integers(0, 10**6))), data.draw(st.sampled_from([0.0, 0.0, 0.3]))
    own = drive(config, traffic, propose, ask_policy=random_policy(draws, faults))
    planned = drive(config, traffic, propose)
    assert own.outputs
    for key in own.outputs:
        assert own.tokens(*key) == planned.tokens(*key)
        assert own.finish(*key).finish_reason == planned.finish(*key).finish_reason
    assert own.scheduler.kv.pool.num_used == 0, "blocks leaked"


def of_policy(ask: AskPolicy, **changes: object) -> Harness:
    config = replace(harness().scheduler.config, **changes)  # type: ignore[arg-type] # free keywords
    return Harness(Scheduler(config, ask_policy=ask))


def test_a_policy_orders_admission_and_preemption() -> None:
    run = of_policy(load_policy(HERE + "ShortestFirst"), max_num_seqs=1, max_num_sampled=1)
    for number, length in enumerate((12, 4, 8)):
        run.scheduler.add(b"", generate(f"r{number}", prompt(length), 2))
    run.run()
    assert [new.sequence_id for plan in run.steps for new in plan.new_rows] == [1, 2, 0]
    assert run.scheduler.stats(0.0).num_policy_faults == 0


def test_the_last_in_order_is_preempted() -> None:
    def newest_last(sequences: list[OpenSequence]) -> list[int]:
        return [each.id for each in sequences]

    def oldest_last(sequences: list[OpenSequence]) -> list[int]:
        return [each.id for each in reversed(sequences)]

    again = []
    for policy in (newest_last, oldest_last):
        run = of_policy(policy, num_blocks=9, prefix_caching=False, expected_output=0)
        run.scheduler.add(b"", generate("first", prompt(12), 20))
        run.step()
        run.scheduler.add(b"", generate("second", prompt(12, first=40), 20))
        run.run()
        assert run.scheduler.stats(0.0).num_preemptions == 1
        again.append([new.sequence_id for plan in run.steps for new in plan.new_rows][-1])
    assert again == [1, 0]


@pytest.mark.parametrize("name", FAILING)
def test_a_policy_that_fails_leaves_the_planned_order(name: str, caplog: pytest.LogCaptureFixture) -> None:
    run = of_policy(load_policy(HERE + name), max_num_seqs=1, max_num_sampled=1)
    with caplog.at_level(logging.ERROR):
        for number, length in enumerate((12, 4, 8)):
            run.scheduler.add(b"", generate(f"r{number}", prompt(length), 2))
        run.run()
    assert [new.sequence_id for plan in run.steps for new in plan.new_rows] == [0, 1, 2]
    assert run.scheduler.stats(0.0).num_policy_faults > 1
    assert sum("scheduling policy" in record.message for record in caplog.records) == 1


def test_a_policy_that_hangs_is_given_up() -> None:
    run = of_policy(load_policy(HERE + "Hangs", timeout_s=0.05), max_num_seqs=1, max_num_sampled=1)
    for number in range(3):
        run.scheduler.add(b"", generate(f"r{number}", prompt(4), 4))
    run.run()
    assert [new.sequence_id for plan in run.steps for new in plan.new_rows] == [0, 1, 2]
    assert run.scheduler.stats(0.0).num_policy_faults > 3, "it is called three times, and the planned order stays"


@pytest.mark.parametrize(
    ("name", "words"),
    [("NOT_A_POLICY", "no method order"), ("CannotBeMade", "TypeError"), ("missing", "cannot be imported")],
)
def test_what_is_no_policy_is_refused_at_the_start(name: str, words: str) -> None:
    with pytest.raises(PluginError, match=words) as error:
        load_policy(HERE + name)
    assert "scheduler.scheduler_cls" in str(error.value)


def test_an_object_is_a_policy_too() -> None:
    assert load_policy(HERE + "shortest")([]) == []
