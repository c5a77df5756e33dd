"""A vocabulary for tests: every byte is a token, a few words are too; 0 ends a sequence."""

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from appliance.text.byte_alphabet import CHARACTER_OF_BYTE
from appliance.text.tokenizer import Tokenizer as TextTokenizer

EOS, FIRST_BYTE, VOCAB = 0, 1, 300
_MERGES = ("t r", "tr u", "tru e", "n u", "l l", "nu ll", "o n", "i o", "io n", "e r", '{ "', '" :', '" ,', '" }')


@cache
def byte_tokenizer() -> Tokenizer:
    vocabulary = {"<|end|>": EOS} | {CHARACTER_OF_BYTE[byte]: FIRST_BYTE + byte for byte in range(256)}
    merges = [(first, second) for first, second in (merge.split(" ") for merge in _MERGES)]
    vocabulary |= {first + second: 257 + place for place, (first, second) in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", normalized=False)])
    return tokenizer


@cache
def token_bytes() -> list[bytes]:
    """Returns the bytes of each token."""
    tokenizer = TextTokenizer(byte_tokenizer())
    return [tokenizer.token_bytes(token) for token in range(VOCAB)]


def spelled(text: str | bytes) -> list[int]:
    """Returns the tokens of a text, byte by byte."""
    return [FIRST_BYTE + byte for byte in (text.encode() if isinstance(text, str) else text)]
