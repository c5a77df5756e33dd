"""How each byte-level vocabulary splits text before its merges: GGUF's `tokenizer.ggml.pre` names.

The patterns are those of the checkpoints' own tokenizer.json files; llama.cpp (llama-vocab.cpp) names them.
"""

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_SLASHED_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_WORDS[0]}|{_WORDS[1]}|\p{{N}}" + _SLASHED_REST
_GPT4O = rf"{_WORDS[0]}{_CONTRACTIONS}?|{_WORDS[1]}{_CONTRACTIONS}?|\p{{N}}{{1,3}}" + _SLASHED_REST


@dataclass(frozen=True, slots=True)
class Splitting:
    """One way to split: the patterns in order, and whether text is composed (NFC) first."""

    patterns: tuple[str, ...]
    compose: bool = False

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.compose else None

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_DIGITS = r"\p{N}"
_PLAIN_GPT2 = Splitting((_GPT2,))
_STARCODER = Splitting((_DIGITS, _GPT2))
_LIKE_LLAMA3 = Splitting((_LLAMA3,))
_LIKE_QWEN2 = Splitting((_QWEN2,), compose=True)

SPLITTINGS: dict[str, Splitting] = {
    "default": _PLAIN_GPT2,
    "gpt-2": _PLAIN_GPT2,
    "gpt2": _PLAIN_GPT2,
    "phi-2": _PLAIN_GPT2,
    "olmo": Splitting((_GPT2,), compose=True),
    "refact": _STARCODER,
    "starcoder": _STARCODER,
    "smollm": _STARCODER,
    "codeshell": _STARCODER,
    "llama-bpe": _LIKE_LLAMA3,
    "llama-v3": _LIKE_LLAMA3,
    "llama3": _LIKE_LLAMA3,
    "smaug-bpe": _LIKE_LLAMA3,
    "dbrx": _LIKE_LLAMA3,
    "falcon3": _LIKE_LLAMA3,
    "pixtral": Splitting((_TEKKEN,)),
    "tekken": Splitting((_TEKKEN,)),
    "gpt-4o": Splitting((_GPT4O,)),
    "llama4": Splitting((_GPT4O,)),
    "qwen2": _LIKE_QWEN2,
    "deepseek-r1-qwen": _LIKE_QWEN2,
}
