"""The same seed gives the same work; rounds share lengths and nothing else."""

import itertools
import random
import statistics
from pathlib import Path

import msgspec
import pytest

from appliance.base.errors import ApplianceError
from appliance.bench.asked import asked_requests
from appliance.bench.changes import parse_changes
from appliance.bench.scenario import PRESETS, Scenario
from appliance.bench.workload import FIRST_ORDINARY_ID, arrival_times, make_workload

VOCAB = 32_000


def test_rounds_have_equal_lengths_and_different_tokens() -> None:
    scenario = PRESETS["offline64"]
    first, again, second = (make_workload(scenario, VOCAB, index) for index in (0, 0, 1))
    assert first == again
    assert [len(item.prompt) for item in first] == [len(item.prompt) for item in second]
    assert all(one.prompt != other.prompt for one, other in zip(first, second, strict=True))


def test_random_lengths_stay_in_the_range_and_ids_in_the_vocabulary() -> None:
    items = make_workload(PRESETS["offline64"], VOCAB)
    lengths = [len(item.prompt) for item in items]
    assert min(lengths) >= 128
    assert max(lengths) <= 512
    assert len(set(lengths)) > 20
    assert all(FIRST_ORDINARY_ID <= token < VOCAB for item in items for token in item.prompt)


def test_shared_prefix_is_shared_and_the_rest_is_not() -> None:
    items = make_workload(PRESETS["shared-prefix"], VOCAB)
    assert len({tuple(item.prompt[:1024]) for item in items}) == 1
    assert len({tuple(item.prompt[1024:]) for item in items}) == len(items)
    assert {len(item.prompt) for item in items} == {1088}


def test_a_prefix_leaves_something_of_the_prompt() -> None:
    scenario = Scenario(name="s", workload="shared-prefix", input_len=64, prefix_len=64)
    with pytest.raises(ApplianceError, match="a shared prefix of 64 leaves nothing of 64"):
        make_workload(scenario, VOCAB)


@pytest.mark.parametrize("change", ["num_prompts=0", "request_rate=0", "range_ratio=1", "workload=x", "nonsense=1"])
def test_a_change_that_makes_no_sense_is_refused(change: str) -> None:
    with pytest.raises(ApplianceError, match=f"--with {change}"):
        parse_changes([change])


@pytest.mark.parametrize(("burstiness", "expected"), [(0.25, 2.0), (1.0, 1.0), (16.0, 0.25)])
def test_gaps_have_the_asked_rate_and_burstiness(burstiness: float, expected: float) -> None:
    scenario = Scenario(name="s", num_prompts=20_000, request_rate=50.0, burstiness=burstiness)
    times = arrival_times(scenario, random.Random(3))
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert statistics.fmean(gaps) == pytest.approx(1 / 50, rel=0.05)
    # The coefficient of variation of a gamma distribution is 1 / sqrt(shape).
    assert statistics.stdev(gaps) / statistics.fmean(gaps) == pytest.approx(expected, rel=0.1)


def test_trace_lines_become_requests(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(
        b"\n".join(
            msgspec.json.encode(line)
            for line in ({"prompt": "hello", "output_len": 4}, {"input_len": 7, "arrival_s": 1.5})
        )
    )
    items = make_workload(Scenario(name="t", workload="trace", trace_file=str(trace)), VOCAB)
    assert items[0].prompt == "hello"
    assert (len(items[1].prompt), items[1].arrival_s, items[1].output_len) == (7, 1.5, 128)


@pytest.mark.parametrize(
    "line", [b"{", b'{"output_len": 3}', b'{"prompt": "a", "input_len": 2}', b'{"prompt": "a", "x": 1}']
)
def test_a_bad_trace_line_is_named(tmp_path: Path, line: bytes) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(b'{"prompt": "fine"}\n' + line)
    with pytest.raises(ApplianceError, match=r"trace\.jsonl:2"):
        make_workload(Scenario(name="t", workload="trace", trace_file=str(trace)), VOCAB)


def test_texts_are_words_of_the_asked_number_and_other_ones_each_round() -> None:
    first, second = (make_workload(PRESETS["embed32"], VOCAB, index) for index in (0, 1))
    assert len(first) == 512
    assert {len(str(item.prompt).split()) for item in first} == {32}
    assert first != second


def test_a_request_to_rank_holds_documents_and_the_first_ones_words() -> None:
    requests = asked_requests(PRESETS["rerank32"], make_workload(PRESETS["rerank32"], VOCAB))
    assert len(requests) == 16
    assert {(each.path, each.num_prompts, len(each.body["documents"])) for each in requests} == {("/rerank", 32, 32)}
    assert requests[0].body["documents"][0].startswith(requests[0].body["query"])


def test_a_completion_is_asked_for_as_the_scenario_says() -> None:
    scenario = Scenario(name="s", num_prompts=1, input_len=3, output_len=5, top_p=0.5, stream=False)
    [asked] = asked_requests(scenario, make_workload(scenario, VOCAB))
    assert asked.path == "/v1/completions"
    given = {"max_tokens": 5, "temperature": 0.0, "top_p": 0.5, "ignore_eos": True, "stream": False}
    assert given.items() <= asked.body.items()
    assert len(asked.body["prompt"]) == 3
