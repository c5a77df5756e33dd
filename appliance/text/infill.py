"""Fill-in-the-middle prompts: they have a prefix and a suffix, and the answer goes between."""

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class InfillFormat:
    """The order of a family's marks and the two texts. Each mark is one token of the vocabulary."""

    parts: tuple[str, ...]  # "{prefix}" and "{suffix}" stand for the texts

    @property
    def marks(self) -> tuple[str, ...]:
        return tuple(part for part in self.parts if not part.startswith("{"))


_BAR, _LINE = "\uff5c", "\u2581"  # characters in the marks of DeepSeek and SentencePiece vocabularies

FORMATS: tuple[InfillFormat, ...] = (
    InfillFormat(("<|fim_prefix|>", "{prefix}", "<|fim_suffix|>", "{suffix}", "<|fim_middle|>")),  # Qwen, CodeGemma
    InfillFormat(("<fim_prefix>", "{prefix}", "<fim_suffix>", "{suffix}", "<fim_middle>")),  # StarCoder, Granite code
    InfillFormat(  # DeepSeek coder
        tuple(
            part.replace("|", _BAR).replace("_", _LINE)
            for part in ("<|fim_begin|>", "{prefix}", "<|fim_hole|>", "{suffix}", "<|fim_end|>")
        )
    ),
    InfillFormat((f"{_LINE}<PRE>", "{prefix}", f"{_LINE}<SUF>", "{suffix}", f"{_LINE}<MID>")),  # Code Llama
    InfillFormat(("[SUFFIX]", "{suffix}", "[PREFIX]", "{prefix}")),  # Codestral
)


def infill_format(tokenizer: Tokenizer) -> InfillFormat | None:
    """Returns the format whose marks are all tokens of the vocabulary; None if the model was not trained to fill in."""
    added = set(tokenizer.added_tokens.values())
    return next((each for each in FORMATS if added.issuperset(each.marks)), None)


def encode_infill(
    tokenizer: Tokenizer, infill: InfillFormat, prefix: str, suffix: str, *, add_special_tokens: bool
) -> list[int]:
    """Returns the token ids of the whole prompt. Marks in the texts are tokenized as in any other prompt."""
    texts = {"{prefix}": prefix, "{suffix}": suffix}
    token_ids: list[int] = tokenizer.encode("", add_special_tokens=True) if add_special_tokens else []
    for part in infill.parts:
        token_ids += _part(tokenizer, part, texts)
    return token_ids


def _part(tokenizer: Tokenizer, part: str, texts: dict[str, str]) -> Sequence[int]:
    if part == "{suffix}":
        return tokenizer.encode_continuation(texts[part])
    if part in texts:
        return tokenizer.encode(texts[part], add_special_tokens=False)
    mark = tokenizer.token_id(part)
    assert mark is not None, "infill_format found it"
    return [mark]
