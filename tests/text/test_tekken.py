"""Mistral's tekken.json: the ids of mistral-common, which made those written here (version 1.13.1)."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from appliance.text.errors import TokenizerError
from appliance.text.loading import load_tokenizer

_MERGED = [b"th", b"he", b"the", b" t", b" the", b"in", b"ing", b"er", b"an", b" a", b"on", b"\xc3\xa9", b"12"]
VOCABULARY = [*(bytes([byte]) for byte in range(256)), *_MERGED]
PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
IDS = {
    "the king sings in the inn": [1, 282, 56, 131, 286, 56, 139, 286, 139, 56, 285, 284, 56, 285, 134],
    "Hello, THE world 123!\n\n  there": [
        1, 96, 125, 132, 132, 135, 68, 56, 108, 96, 93, 56, 143, 135, 138, 132, 124, 56, 73, 74, 75, 57, 34, 34, 56,
        284, 138, 125,
    ],
    "caf\u00e9 \u4f60\u597d \U0001f600": [
        1, 123, 121, 126, 291, 56, 252, 213, 184, 253, 189, 213, 56, 264, 183, 176, 152,
    ],
    " a an on": [1, 289, 56, 288, 56, 290],
    "": [1],
}  # fmt: skip


def write(folder: Path, **changes: Any) -> Path:
    """The last token of the vocabulary is one more than the stated size leaves."""
    tokens = [{"rank": rank, "token_bytes": base64.b64encode(each).decode()} for rank, each in enumerate(VOCABULARY)]
    config = {
        "pattern": PATTERN, "default_vocab_size": len(VOCABULARY) + 23, "default_num_special_tokens": 24,
        "version": "v3",
    }  # fmt: skip
    file = {"config": config | changes.pop("config", {}), "vocab": tokens} | changes
    (folder / "tekken.json").write_text(json.dumps(file))
    return folder


def test_ids_are_those_of_mistral_common(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path), tmp_path / "cache")
    kept = load_tokenizer(tmp_path, tmp_path / "cache")
    for text, ids in IDS.items():
        assert tokenizer.encode(text, add_special_tokens=True) == kept.encode(text, add_special_tokens=True) == ids
        assert tokenizer.encode(text, add_special_tokens=False) == ids[1:]
        assert tokenizer.decode(ids[1:]) == text
    assert tokenizer.vocab_size == 292
    assert tokenizer.identity.special_tokens["eos_token"] == "</s>"
    assert (tokenizer.token_id("[INST]"), tokenizer.token_id("<SPECIAL_23>")) == (3, 23)
    assert {3, 23} <= tokenizer.special_ids


def test_special_tokens_that_the_file_lists(tmp_path: Path) -> None:
    listed = [{"rank": rank, "token_str": text} for rank, text in enumerate(("<unk>", "<s>", "</s>", "[THINK]"))]
    tokenizer = load_tokenizer(write(tmp_path, special_tokens=listed))
    assert (tokenizer.token_id("[THINK]"), tokenizer.token_id("<SPECIAL_4>")) == (3, 4)


def test_tokenizer_json_comes_first(tmp_path: Path) -> None:
    write(tmp_path)
    own = load_tokenizer(tmp_path).backend
    own.add_tokens(["sings"])
    own.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).vocab_size == 293


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no vocabulary": ({"vocab": None}, "tekken.json cannot be read"),
    "too few tokens": ({"config": {"default_vocab_size": 999}}, "vocab has not the 975 tokens"),
    "base 64": ({"vocab": [{"rank": 0, "token_bytes": "?"}]}, "tekken.json cannot be read"),
    "special tokens": ({"config": {"default_num_special_tokens": 8}}, "20 special tokens do not fit the 8"),
    "no end": ({"special_tokens": [{"rank": 0, "token_str": "<s>"}]}, "1 special tokens do not fit the 24"),
    "ranks": ({"special_tokens": [{"rank": 1, "token_str": "<s>"}]}, "ranks that are not 0, 1, 2"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_refused(what: str, tmp_path: Path) -> None:
    changes, message = BROKEN[what]
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(write(tmp_path, **changes))
