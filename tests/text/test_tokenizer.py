"""Encoding and decoding agree with transformers, from a folder and from GGUF metadata."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from appliance.text.errors import TokenizerError
from appliance.text.gguf_models import derived_merges
from appliance.text.loading import load_tokenizer
from appliance.text.pre_tokenizers import SPLITTINGS

TEXTS = [
    "", " ", "  ", "\n", "\t\n ", "Hello, world!", "  leading and trailing  ", "I'll we've DON'T can't",
    "a\u0301 vs \u00e1", "na\u00efve caf\u00e9 \u5317\u4eac\u6771\u4eac",
    "\u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467", "def f(x):\n    return x**2  # comment\n\n\n",
    "1234567890 3.14159 1,000,000", "<|im_start|>user\nhi<|im_end|>", "\r\n\r\n  x", "a" * 300,
    "\u00a0nbsp\u2003em", "mixed\u0000null", "CamelCaseIdentifier snake_case kebab-case", "https://example.com/?q=1&r=%20",
    "\ufeffbom", "<s>not special</s> <0x0A>", "\u2581underline\u2581", "ends with space ", "{{ jinja }} {% x %}",
]  # fmt: skip
CORPUS = [
    *TEXTS,
    "the quick brown fox jumps over the lazy dog",
    "Hello world I'll return 123 north 456",
    "def main(): pass",
]


def byte_level(pre: str) -> Backend:
    backend = Backend(models.BPE())
    splitting = SPLITTINGS[pre]
    if splitting.compose:
        backend.normalizer = splitting.normalizer()
    backend.pre_tokenizer = splitting.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=["<|end|>", "<|im_start|>", "<|im_end|>"]
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def write_gguf(path: Path, backend: Backend, pre: str, **extra: Any) -> Path:
    writer = gguf.GGUFWriter(path, "qwen2")
    vocabulary = backend.get_vocab()
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    special = set(backend.get_added_tokens_decoder())
    writer.add_token_types([3 if place in special else 1 for place in range(len(tokens))])
    merges = json.loads(backend.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    writer.add_add_bos_token(bool(extra.get("add_bos")))
    writer.add_chat_template("{{ messages }}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe", "gpt-2", "smollm", "tekken", "gpt-4o"])
def test_gguf_byte_level_equals_its_source(tmp_path: Path, pre: str) -> None:
    source = byte_level(pre)
    reference = PreTrainedTokenizerFast(tokenizer_object=source, clean_up_tokenization_spaces=False)
    ours = load_tokenizer(write_gguf(tmp_path / "m.gguf", source, pre))
    for text in TEXTS:
        ids = ours.encode(text, add_special_tokens=False)
        if pre not in ("llama-bpe", "tekken", "gpt-4o"):  # those take whole words first, which the source does not
            assert ids == reference.encode(text, add_special_tokens=False), text
        assert ours.decode(ids) == reference.decode(ids), text
    assert ours.identity.special_tokens["eos_token"] == "<|end|>"
    assert ours.identity.chat_templates == {"default": "{{ messages }}"}


def test_gguf_equals_transformers(tmp_path: Path) -> None:
    """transformers reads the same file with its own converter."""
    path = write_gguf(tmp_path / "m.gguf", byte_level("qwen2"), "qwen2")
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer, get_gguf_tokenizer

    architecture, described, _ = get_gguf_tokenizer(str(path))
    reference, _ = convert_gguf_tokenizer(architecture, described)
    ours = load_tokenizer(path)
    for text in TEXTS:
        if text == "a\u0301 vs \u00e1":
            continue  # transformers forgets Qwen's NFC here; Qwen's own tokenizer.json has it
        assert ours.encode(text, add_special_tokens=False) == reference.encode(text, add_special_tokens=False).ids, text


def test_folder_equals_transformers(tmp_path: Path) -> None:
    source = byte_level("qwen2")
    reference = PreTrainedTokenizerFast(
        tokenizer_object=source, bos_token="<|end|>", eos_token="<|im_end|>", clean_up_tokenization_spaces=False
    )
    reference.add_tokens(["<plain>"])
    reference.chat_template = "{{ bos_token }}{{ messages[0].content }}"
    reference.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path)
    for text in [*TEXTS, "a<plain>b", "<|im_end|><|im_end|>x"]:
        for special in (True, False):
            assert ours.encode(text, add_special_tokens=special) == loaded.encode(text, add_special_tokens=special), (
                text
            )
        ids = loaded.encode(text)
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == loaded.decode(ids, skip_special_tokens=skip), text
    assert ours.identity.chat_templates["default"] == reference.chat_template
    assert ours.identity.special_tokens["eos_token"] == "<|im_end|>"
    assert ours.vocab_size == len(loaded)


@pytest.mark.parametrize("add_bos", [True, False])
def test_tokenizer_json_decides_about_bos(tmp_path: Path, add_bos: bool) -> None:
    backend = byte_level("qwen2")
    if add_bos:
        backend.post_processor = processors.TemplateProcessing(single="<|end|> $A", special_tokens=[("<|end|>", 0)])
    PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|end|>").save_pretrained(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "add_bos_token": not add_bos}))
    loaded, ours = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    assert ours.encode("hi", add_special_tokens=True) == loaded.encode("hi")
    assert (ours.encode("hi", add_special_tokens=True)[0] == 0) is add_bos


@pytest.mark.parametrize("add_bos", [True, False])
def test_gguf_metadata_decides_about_bos(tmp_path: Path, add_bos: bool) -> None:
    path = write_gguf(tmp_path / "m.gguf", byte_level("qwen2"), "qwen2", add_bos=add_bos)
    assert (load_tokenizer(path).encode("hi", add_special_tokens=True)[0] == 0) is add_bos


def sentencepiece_gguf(path: Path, architecture: str, *, prefix: bool) -> Path:
    """A small scored vocabulary with byte tokens, as SentencePiece BPE makes them."""
    space = "\u2581"
    words = [space, *"helowrdt12", "\n", "\n\n", "he", "ll", "hell", "hello", "wo", "rld", "world", "th", space + space]
    words += [space + word for word in ("h", "hello", "w", "wo", "world", "t", "the")]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    kinds = [2, 3, 3, *[6] * 256, *[4 if word == "\n\n" else 1 for word in words]]
    scores = [0.0] * 259 + [-float(place) for place in range(len(words))]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(prefix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(("architecture", "prefix"), [("llama", True), ("gemma3", False), ("phi3", True)])
def test_gguf_sentencepiece_equals_transformers(tmp_path: Path, architecture: str, prefix: bool) -> None:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer, get_gguf_tokenizer

    path = sentencepiece_gguf(tmp_path / "m.gguf", architecture, prefix=prefix)
    name, described, _ = get_gguf_tokenizer(str(path))
    # For Llama, transformers puts no space before a text that begins with one; Llama's own tokenizer does, as Phi-3's.
    reference, _ = convert_gguf_tokenizer("phi3" if name == "llama" else name, described)
    ours = load_tokenizer(path)
    for text in [*TEXTS, "hello world", " hello", "the hello\n\nworld", "hello  world"]:
        if "<s>" in text:
            continue  # transformers normalizes after a special token in the middle of a text
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == reference.encode(text, add_special_tokens=False).ids, text
        assert ours.decode(ids) == reference.decode(ids, skip_special_tokens=False), text
    assert ours.encode("hello", add_special_tokens=True)[0] == 1
    assert ours.is_bytewise


def test_merges_follow_scores() -> None:
    tokens = ["a", "b", "c", "ab", "bc", "abc"]
    assert derived_merges(tokens, [0, 0, 0, -2.0, -1.0, -3.0]) == [("b", "c"), ("a", "b"), ("ab", "c"), ("a", "bc")]


def test_converted_tokenizer_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "m.gguf", byte_level("qwen2"), "qwen2")
    first = load_tokenizer(path, tmp_path / "cache")
    kept = list((tmp_path / "cache" / "tokenizers").iterdir())
    assert len(kept) == 1
    monkeypatch.setattr("appliance.text.gguf.build_tokenizer", lambda file: pytest.fail("it was converted again"))
    second = load_tokenizer(path, tmp_path / "cache")
    assert second.encode("hello", add_special_tokens=True) == first.encode("hello", add_special_tokens=True)
    assert second.special_ids == first.special_ids


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe", "tekken"])
def test_a_kept_tokenizer_is_the_same(tmp_path: Path, pre: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", byte_level(pre), pre, add_bos=True)
    fresh, _ = load_tokenizer(path), load_tokenizer(path, tmp_path / "cache")
    kept = load_tokenizer(path, tmp_path / "cache")
    assert kept.backend.to_str() == fresh.backend.to_str()
    assert (kept.identity, kept.added_tokens, kept.special_ids) == (
        fresh.identity,
        fresh.added_tokens,
        fresh.special_ids,
    )


def test_a_tokenizer_of_a_folder_is_kept_until_a_file_changes(tmp_path: Path) -> None:
    source = byte_level("qwen2")
    source.add_special_tokens(["<|late|>"])
    source.save(str(tmp_path / "tokenizer.json"))
    fresh = load_tokenizer(tmp_path, tmp_path / "cache")
    assert load_tokenizer(tmp_path, tmp_path / "cache").backend.to_str() == fresh.backend.to_str()
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<|late|>"}')
    assert load_tokenizer(tmp_path, tmp_path / "cache").identity.special_tokens == {"bos_token": "<|late|>"}


def test_a_cache_that_cannot_be_looked_at_is_done_without(tmp_path: Path) -> None:
    """Its name is too long, which fails as a folder does that this user may not read."""
    byte_level("qwen2").save(str(tmp_path / "tokenizer.json"))
    found = load_tokenizer(tmp_path, tmp_path / (300 * "x"))
    assert found.backend.to_str() == load_tokenizer(tmp_path).backend.to_str()


def test_a_tokenizer_of_another_kind_is_not_kept(tmp_path: Path) -> None:
    Backend(models.WordPiece({"a": 0, "[UNK]": 1}, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    for _ in range(2):
        assert load_tokenizer(tmp_path, tmp_path / "cache").token_id("a") == 0
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("damage", [lambda data: b"{", lambda data: data[:-1] + bytes([data[-1] ^ 1])])
def test_broken_cache_is_made_anew(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = write_gguf(tmp_path / "m.gguf", byte_level("qwen2"), "qwen2")
    load_tokenizer(path, tmp_path / "cache")
    kept = next((tmp_path / "cache" / "tokenizers").iterdir())
    good = kept.read_bytes()
    kept.write_bytes(damage(good))
    assert load_tokenizer(path, tmp_path / "cache").encode("hello", add_special_tokens=False)
    assert kept.read_bytes() == good


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"has no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match="cannot be read"):
        load_tokenizer(tmp_path)
    backend = byte_level("qwen2")
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"added_tokens_decoder": {"x": {"content": "<x>"}}}')
    with pytest.raises(TokenizerError, match="names the id 'x', which is no number"):
        load_tokenizer(tmp_path)
    with pytest.raises(TokenizerError, match="pre-tokenizer 'martian'"):
        load_tokenizer(write_gguf(tmp_path / "m.gguf", backend, "martian"))


@pytest.mark.parametrize("pre", SPLITTINGS)
def test_no_splitting_loses_text(pre: str) -> None:
    splitting = SPLITTINGS[pre]
    step, whole = splitting.pre_tokenizer(), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in [*TEXTS, *CORPUS]:
        [expected] = whole.pre_tokenize_str(text) or [("", (0, 0))]
        assert "".join(piece for piece, _ in step.pre_tokenize_str(text)) == expected[0]


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "I'll pay 1234!", ["I", "'ll", " pay", " 1234", "!"]),
        ("starcoder", "x 1234", ["x", " ", "1", "2", "3", "4"]),
        ("llama-bpe", "x 1234 I'LL", ["x", " ", "123", "4", " I", "'LL"]),
        ("qwen2", "x 12\n\n y", ["x", " ", "1", "2", "\n\n", " y"]),
        ("qwen35", "e\u0301a\u0300q\u0301", ["\u00e9\u00e0q\u0301"]),
        ("tekken", "camelCase 12/", ["camel", "Case", " ", "1", "2", "/"]),
        ("gpt-4o", "camelCase's 1234", ["camel", "Case's", " ", "123", "4"]),
        ("tiny_aya", "1234567", ["1", "234", "567"]),
        ("kimi-k2", "Hi\u5317\u4eac\u3042a", ["Hi", "\u5317\u4eac", "\u3042a"]),
        ("deepseek-llm", "a \u00e9\u5317 12", ["a", " \u00e9", "\u5317", " ", "1", "2"]),
        ("deepseek-coder", "a, b1", ["a", ",", " b", "1"]),
        ("deepseek-v3", "x 1234\u5317_ab", ["x", " ", "123", "4", "\u5317", "_ab"]),
        ("spark2_5", "a.\n\n1", ["a", ".", "\n", "\n", "1"]),
        ("youtu", "\ud55c\uae00ab\u3001\u5317", ["\ud55c\uae00", "ab", "\u3001", "\u5317"]),
        ("falcon", "a$1234", ["a", "$", "123", "4"]),
        ("default", "a`b,c 1234", ["a", "`", "b", ",", "c", " ", "123", "4"]),
        ("bloom", "a b,c.", ["a", " b", ",", "c", "."]),
        ("viking", "a b12", ["a", " b", "1", "2"]),
        ("jais-2", "a" + " " * 7 + "b", ["a", " " * 4, " " * 2, " b"]),
        ("bailingmoe", "a1!\n\n1", ["a", "1", "!\n\n", "1"]),
        ("seed-coder", "a!\nb", ["a", "!", "\n", "b"]),
        ("exaone-moe", "ab cd!/", ["ab cd", "!/"]),
        ("laguna", "a.\n\nb", ["a", ".", "\n\n", "b"]),
        ("ufakzeka", "Ali'yi 12", ["Ali", "'yi", " ", "1", "2"]),
        ("minicpm5", "a1234", ["a", "123", "4"]),
    ],
)
def test_where_text_is_split(pre: str, text: str, pieces: list[str]) -> None:
    splitting = SPLITTINGS[pre]
    composed = splitting.normalizer()
    text = composed.normalize_str(text) if composed else text
    spelled = splitting.pre_tokenizer().pre_tokenize_str(text)
    assert [text[begin:end] for _, (begin, end) in spelled] == pieces
