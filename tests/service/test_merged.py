"""What a slow reader gets as one event says all that the single outputs said."""

from dataclasses import fields

import pytest

from appliance.engine.messages import DraftCounts, TokenLogprobs
from appliance.service.requests import TextOutput
from appliance.service.streams import merged

LOGPROBS = [TokenLogprobs(token_ids=[1], logprobs=[-0.5], rank=1)]
SAID = {
    "text": "b",
    "token_ids": [2],
    "logprobs": LOGPROBS,
    "num_cached_tokens": 3,
    "finish_reason": "stop",
    "stop_reason": 7,
    "vector": b"1234",
    "drafts": DraftCounts().with_draft(2, 1),
}


def output(**said: object) -> TextOutput:
    return TextOutput(**({"index": 0, "text": "", "token_ids": []} | said))  # type: ignore[arg-type] # free keywords


@pytest.mark.parametrize("name", SAID)
def test_a_field_of_the_last_output_is_kept(name: str) -> None:
    [one] = merged([output(), output(**{name: SAID[name]})])
    assert getattr(one, name) == SAID[name]


@pytest.mark.parametrize("name", sorted({*SAID, "prompt_logprobs"} - {"finish_reason", "stop_reason"}))
def test_a_field_of_the_first_output_is_kept(name: str) -> None:
    value = SAID.get(name, [None, *LOGPROBS])
    [one] = merged([output(**{name: value}), output()])
    assert getattr(one, name) == value


def test_the_latest_news_of_drafts_counts() -> None:
    first, last = SAID["drafts"], DraftCounts().with_draft(2, 1).with_draft(2, 2)
    [one] = merged([output(drafts=first), output(drafts=last), output()])
    assert one.drafts == last


def test_every_field_is_tried() -> None:
    """Prompt log-probabilities come with the first output of a sequence, and only its last one ends it."""
    assert {each.name for each in fields(TextOutput)} == {*SAID, "index", "prompt_logprobs"}
