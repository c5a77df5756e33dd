"""Real vocabularies give the ids that the models' own tokenizers give (see vocabularies/reduce.py)."""

import json
import lzma
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
from transformers import XLMRobertaTokenizer

from appliance.checkpoint.gguf import GgufFile
from appliance.text.errors import TokenizerError
from appliance.text.gguf import build_tokenizer
from appliance.text.gguf_fields import UNUSED, special_tokens
from appliance.text.tokenizer import Tokenizer, TokenizerIdentity

FOLDER = Path(__file__).parent / "vocabularies"
NAMES = (
    "bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe", "llama-spm",
    "mpt", "phi-3", "qwen2", "starcoder",
)  # fmt: skip
PREFIXED = ("llama-spm", "phi-3")  # a space is put before every text


@dataclass(frozen=True)
class _Header:
    """The part of a GgufFile that tokenizers read."""

    metadata: dict[str, Any]


@cache
def kept(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lzma.decompress((FOLDER / f"{name}.json.xz").read_bytes()))
    return found


def header(name: str, **changes: Any) -> GgufFile:
    """The file as it was, with nothing where a token is left out. changes: keys of `tokenizer.ggml`; None takes one."""
    data = kept(name)
    left_out = [f"[left out {place}]" for place in range(data["num_tokens"])]
    tokens, types, scores = left_out, [UNUSED] * len(left_out), [-1e9] * len(left_out)
    for place, (token, token_type, score) in data["tokens"].items():
        tokens[int(place)], types[int(place)], scores[int(place)] = token, token_type, score
    lists = {"tokens": tokens, "token_type": types, "scores": scores}
    if data["merges"]:
        lists["merges"] = [f"{tokens[left]} {tokens[right]}" for left, right in data["merges"]]
    stated = {f"tokenizer.ggml.{key}": value for key, value in {**lists, **changes}.items()}
    metadata = {**data["metadata"], **stated}
    return cast(GgufFile, _Header({key: value for key, value in metadata.items() if value is not None}))


@cache
def tokenizer(name: str) -> Tokenizer:
    file = header(name)
    return Tokenizer(build_tokenizer(file), TokenizerIdentity(special_tokens(file)))


@pytest.mark.parametrize("name", NAMES)
def test_every_text_has_its_own_ids(name: str) -> None:
    cases = kept(name)["cases"]
    assert len(cases) >= 46
    wrong = {text: ids for text, ids in cases if tokenizer(name).encode(text, add_special_tokens=False) != ids}
    assert not wrong


@pytest.mark.parametrize("name", [name for name in NAMES if name != "bert-bge"])
def test_every_text_comes_back(name: str) -> None:
    for text, ids in kept(name)["cases"]:
        assert tokenizer(name).decode(ids) == text


def test_each_text_of_a_pair_ends_in_berts_own_way() -> None:
    backend = tokenizer("bert-bge").backend
    assert backend.encode("hello", "you").tokens == ["[CLS]", "hello", "[SEP]", "you", "[SEP]"]


def test_bert_writes_words_in_lower_case() -> None:
    ids = tokenizer("bert-bge").encode("Hello, y'all! How are you", add_special_tokens=True)
    assert tokenizer("bert-bge").decode(ids) == "[CLS] hello, y ' all! how are you [SEP]"


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("llama-bpe", 128000),
        ("llama-spm", 1),
        ("phi-3", 1),
        ("deepseek-llm", 100000),
        ("bert-bge", 101),
        ("gpt-2", None),
    ],
)
def test_a_prompt_begins_as_the_file_says_or_as_the_model_was_trained(name: str, first: int | None) -> None:
    """Files of Llama 3 do not say, and mean BOS."""
    ids = tokenizer(name).encode("Hello", add_special_tokens=True)
    assert (ids[0] if first is not None else None) == first
    assert len(ids) == len(tokenizer(name).encode("Hello", add_special_tokens=False)) + (first is not None) * (
        2 if name == "bert-bge" else 1
    )


def test_a_file_that_says_no_to_bos() -> None:
    built = Tokenizer(build_tokenizer(header("llama-bpe", add_bos_token=False)))
    assert built.encode("Hello", add_special_tokens=True) == built.encode("Hello", add_special_tokens=False)


def test_usual_ids_where_the_file_names_none() -> None:
    file = header("llama-spm", bos_token_id=None, eos_token_id=None, unknown_token_id=None)
    assert special_tokens(file) == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert build_tokenizer(file).encode("Hello").ids[0] == 1


@pytest.mark.parametrize("name", PREFIXED)
def test_text_behind_a_special_token_begins_anew(name: str) -> None:
    """This is the behaviour of llama.cpp and the models' own tokenizers."""
    encode = tokenizer(name).encode
    hello, spaced = (encode(text, add_special_tokens=False) for text in ("Hello", " Hello"))
    assert encode("<s>Hello<s> Hello", add_special_tokens=False) == [1, *hello, 1, *spaced]
    assert hello != spaced


def test_merges_are_needed() -> None:
    with pytest.raises(TokenizerError, match="without merges"):
        build_tokenizer(header("gpt-2", merges=None))


def test_merges_of_tokens_that_are_not_there_are_refused() -> None:
    with pytest.raises(TokenizerError, match=r"does not fit together: .*out of vocabulary"):
        build_tokenizer(header("gpt-2", merges=["nothing like", "this one"]))


PIECES = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581", -3.0), ("\u2581hello", -5.0)]
PIECES += [
    ("hel", -4.5),
    ("lo", -4.0),
    ("\u2581wor", -6.0),
    ("ld", -5.5),
    ("!", -4.2),
    (",", -3.6),
    ("\u2581two", -7.0),
]


@pytest.mark.parametrize("text", ["hello world!", "  two  hello, ", "hello</s>two", "worldworld \u2603 two", ""])
def test_unigrams_are_those_of_xlm_roberta(text: str) -> None:
    tokens, scores = zip(*PIECES, strict=True)
    stated = {
        "model": "t5", "tokens": list(tokens), "scores": list(scores), "token_type": [3, 3, 3, 2] + [1] * 9,
        "bos_token_id": 0, "eos_token_id": 2, "unknown_token_id": 3, "add_bos_token": True, "add_eos_token": True,
        "remove_extra_whitespaces": True, "add_space_prefix": True,
    }  # fmt: skip
    file = cast(GgufFile, _Header({f"tokenizer.ggml.{key}": value for key, value in stated.items()}))
    ours, oracle = build_tokenizer(file), XLMRobertaTokenizer(vocab=PIECES)
    assert ours.encode(text).ids == oracle(text)["input_ids"]
    assert ours.encode(text, "two").ids == oracle(text, "two")["input_ids"]
