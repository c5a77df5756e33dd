"""Makes the vocabularies beside this file from llama.cpp's: `python -m tests.text.vocabularies.reduce FOLDER NAME ...`.

FOLDER is `models/` of llama.cpp (https://github.com/ggml-org/llama.cpp, MIT licence): `ggml-vocab-NAME.gguf` with texts
(.inp) and the ids that the model's own tokenizer gives for them (.out). Of a vocabulary, only what can matter to its
texts is kept: tokens whose spelling stands in one of them, and merges of two such tokens. Ids stay what they are.
"""

import argparse
import json
import lzma
from pathlib import Path
from typing import Any

from tokenizers import normalizers, pre_tokenizers

from appliance.checkpoint.gguf import GgufFile, open_gguf, plain
from appliance.text.gguf_fields import BYTE

HERE = Path(__file__).parent
SPACE = "\u2581"
_BETWEEN = "\n__ggml_vocab_test__\n"
_KEPT_KEYS = ("general.architecture", "tokenizer.ggml.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+")
    arguments = parser.parse_args()
    for name in arguments.names:
        path = arguments.folder / f"ggml-vocab-{name}.gguf"
        text = json.dumps(reduced(path), ensure_ascii=False, separators=(",", ":"))
        target = HERE / f"{name}.json.xz"
        target.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
        print(f"{target.name}: {target.stat().st_size} bytes")


def reduced(path: Path) -> dict[str, Any]:
    """metadata: keys with one value. tokens: id -> (text, type, score). merges: pairs of ids. cases: (text, ids)."""
    texts = path.with_name(f"{path.name}.inp").read_bytes().decode().split(_BETWEEN)
    if texts[-1] == "":  # a mark ends the file
        texts.pop()
    lines = path.with_name(f"{path.name}.out").read_text().splitlines()
    cases = [(text, [int(each) for each in line.split()]) for text, line in zip(texts, lines, strict=True)]
    with open_gguf(path) as file:
        metadata = {key: value for key, value in file.metadata.items() if key.startswith(_KEPT_KEYS)}
        single = {key: value for key, value in metadata.items() if isinstance(value, str | int | float)}
        kept = _kept_tokens(file, texts)
        tokens, merges = _list(file, "tokens"), _list(file, "merges")
        kinds, scores = _list(file, "token_type"), _list(file, "scores") or [0.0] * len(tokens)
    ids = {token: place for place, token in enumerate(tokens)}
    pairs = [(ids[left], ids[right]) for left, right in map(_pair, merges) if {left, right, left + right} <= kept]
    listed = {place: (token, kinds[place], scores[place]) for place, token in enumerate(tokens) if token in kept}
    return {"metadata": single, "num_tokens": len(tokens), "tokens": listed, "merges": pairs, "cases": cases}


def _kept_tokens(file: GgufFile, texts: list[str]) -> set[str]:
    kind = file.metadata["tokenizer.ggml.model"]
    everything = "\0".join(_spelled(str(kind), text) for text in texts)
    tokens, kinds = _list(file, "tokens"), _list(file, "token_type")
    bare = {token: token.removeprefix(SPACE) if kind == "bert" else token for token in tokens}
    named = {
        tokens[value] for key, value in file.metadata.items() if key.endswith("_token_id") and isinstance(value, int)
    }
    of_bytes = {token for token, type_ in zip(tokens, kinds, strict=True) if _is_byte(str(kind), token, type_)}
    return {token for token in tokens if bare[token] and bare[token] in everything} | named | of_bytes


def _is_byte(kind: str, token: str, type_: int) -> bool:
    return len(token) == 1 if kind == "gpt2" else type_ == BYTE


def _spelled(kind: str, text: str) -> str:
    if kind == "gpt2":
        composed = normalizers.NFC().normalize_str(text)
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        pieces = [piece for each in (text, composed) for piece, _ in byte_level.pre_tokenize_str(each)]
        return "\0".join([text, *pieces])  # tokens that are matched whole are spelled as they are
    if kind == "bert":
        return normalizers.BertNormalizer().normalize_str(text)
    return SPACE + text.replace(" ", SPACE)


def _pair(merge: str) -> tuple[str, str]:
    cut = merge.find(" ", 1)
    return merge[:cut], merge[cut + 1 :]


def _list(file: GgufFile, name: str) -> list[Any]:
    return list(plain(file.metadata.get(f"tokenizer.ggml.{name}", [])))


if __name__ == "__main__":
    main()
