"""What tells whether a small model may draft for another: the texts of their tokens."""

import json
from pathlib import Path

import pytest

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.vocabulary import compare, read_vocabulary

WORDS = [f"word{number}" for number in range(300)]


@pytest.mark.parametrize(
    ("draft", "relation"),
    [
        (WORDS, "same"),
        (WORDS[:280], "same"),
        ([*WORDS, "[PAD300]", "[PAD301]"], "same"),
        ([*WORDS[:298], "<a>", "<b>"], "same"),
        (WORDS[::-1], "by_text"),
        (["<s>", *WORDS[:290]], "by_text"),
        ([f"other{number}" for number in range(300)], "none"),
        ([], "none"),
    ],
)
def test_vocabularies_are_compared_by_texts(draft: list[str], relation: str) -> None:
    assert compare(WORDS, draft).relation == relation


def test_the_counts_are_told() -> None:
    assert compare(WORDS, [*WORDS[:100], *(f"other{number}" for number in range(300))])[1:] == (100, 400)


@pytest.mark.parametrize("stored", [{"a": 0, "c": 2}, [["a", 0.0], ["b", -1.0], ["c", -2.0]]], ids=["bpe", "unigram"])
def test_texts_of_tokenizer_json_are_read_by_their_ids(stored: object, tmp_path: Path) -> None:
    added = [{"id": 4, "content": "<end>"}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": stored}, "added_tokens": added}))
    found = read_vocabulary(tmp_path)
    assert found == ("a", "b" if isinstance(stored, list) else "", "c", "", "<end>")


def test_a_checkpoint_without_a_tokenizer_has_no_texts(tmp_path: Path) -> None:
    assert read_vocabulary(tmp_path) is None


@pytest.mark.parametrize("text", ["{", "[]", '{"model": {}}'])
def test_a_broken_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError, match="tokenizer"):
        read_vocabulary(tmp_path)
