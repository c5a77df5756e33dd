"""Values are changed in the text; comments, order and everything else stay."""

import pytest

from appliance.spec import load_text
from appliance.spec.edit import EditError, with_values

HEAD = (
    "# why this is here\napi_version: appliance/v1\nkind: Deployment\nname: test\nmodel: {source: hf://a/b}  # small\n"
)
SEQS = {"scheduler.max_num_seqs": 32}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "scheduler:\n  max_num_seqs: 128  # many\n  policy: fcfs\n",
            "scheduler:\n  max_num_seqs: 32  # many\n  policy: fcfs\n",
        ),
        (
            "scheduler:\n    # ours\n    policy: fcfs\n",
            "scheduler:\n    # ours\n    max_num_seqs: 32\n    policy: fcfs\n",
        ),
        ("scheduler: {policy: fcfs}  # one\n", "scheduler: {max_num_seqs: 32, policy: fcfs}  # one\n"),
        ("scheduler: {}\n", "scheduler: {max_num_seqs: 32}\n"),
        ("scheduler: {policy: fcfs, max_num_seqs: auto}\n", "scheduler: {policy: fcfs, max_num_seqs: 32}\n"),
        ("scheduler:\nseed_note: x\n", "scheduler:\n  max_num_seqs: 32\nseed_note: x\n"),
        ("# the end", "# the end\nscheduler:\n  max_num_seqs: 32\n"),
    ],
)
def test_only_the_value_changes(before: str, after: str) -> None:
    assert with_values(HEAD + before, SEQS) == HEAD + after


def test_what_is_written_is_what_is_read() -> None:
    values = {
        "scheduler.max_num_seqs": 4,
        "scheduler.max_num_batched_tokens": 256,
        "scheduler.max_num_partial_prefills": 2,
    }
    for text in ("", "scheduler: {max_num_seqs: 8}\n", "scheduler:\n  max_num_seqs: 8\n"):
        scheduler = load_text(with_values(HEAD + text, values), "test.yaml", (), {}).spec.scheduler
        assert {
            f"scheduler.{path.partition('.')[2]}": getattr(scheduler, path.partition(".")[2]) for path in values
        } == values


@pytest.mark.parametrize(
    "text", ["scheduler: 3\n", 'scheduler: {max_num_seqs: "8"}\n', "scheduler: {max_num_seqs: [1]}\n"]
)
def test_a_value_without_a_place_is_refused(text: str) -> None:
    with pytest.raises(EditError):
        with_values(HEAD + text, SEQS)
