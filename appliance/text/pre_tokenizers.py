"""The splitting of text before the merges, by GGUF's `tokenizer.ggml.pre` names of byte-level vocabularies.

The patterns are those of the checkpoints' own tokenizer.json files; the names are llama.cpp's (llama-vocab.cpp). If the
two differ, the checkpoint's pattern is used. Unknown names are refused: a wrong split would silently give tokens that
the model was not trained on.
"""

from dataclasses import dataclass, replace

from tokenizers import Regex, normalizers, pre_tokenizers


@dataclass(frozen=True, slots=True)
class Splitting:
    """One way to split text.

    patterns: in order; each splits the pieces that the earlier ones left.
    compose: text is composed (NFC) first.
    whole_words: a word that is a token is taken whole, without merges.
    begins_with_bos: prompts begin with BOS if the file does not say.
    """

    patterns: tuple[str, ...]
    compose: bool = False
    whole_words: bool = False
    begins_with_bos: bool = False

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.compose else None

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST = _SIGNS + _SPACES
_LLAMA3 = _CONTRACTIONS + _WORD + r"|\p{N}{1,3}" + _REST
_QWEN2 = _CONTRACTIONS + _WORD + r"|\p{N}" + _REST
_QWEN35 = (  # combining marks belong to words
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _SPACES
)

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_SLASHED_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
_TEKKEN = rf"{_WORDS[0]}|{_WORDS[1]}|\p{{N}}" + _SLASHED_REST
_GPT4O_WORDS = rf"{_WORDS[0]}{_CONTRACTIONS}?|{_WORDS[1]}{_CONTRACTIONS}?"
_GPT4O = _GPT4O_WORDS + r"|\p{N}{1,3}" + _SLASHED_REST
_NOT_HAN = "&&[^\\p{Han}]]"
_KIMI = r"[\p{Han}]+|" + _GPT4O_WORDS.replace(_UPPER, _UPPER[:-1] + _NOT_HAN).replace(_LOWER, _LOWER[:-1] + _NOT_HAN)
_KIMI += r"|\p{N}{1,3}" + _REST

_CASED = (  # letters with a case, beyond ASCII, as DeepSeek LLM's tokenizer.json lists them
    "\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_IDEOGRAPHS = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_KANJI_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[A-Za-z{_CASED}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _IDEOGRAPHS,
    r"\p{N}",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _IDEOGRAPHS, r"\p{N}")
_DEEPSEEK_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
)
_DEEPSEEK_V3 = (r"\p{N}{1,3}", _KANJI_AND_KANA, _DEEPSEEK_WORDS + r"[\r\n]*" + _SPACES)
_SPARK = (r"\p{N}{1,3}", _KANJI_AND_KANA, _DEEPSEEK_WORDS + r"|[\r\n]|\s+(?!\S)|\s+", r"\p{N}")
_YOUTU = (
    "[\uac00-\ud7a3\u3131-\u318e]+"
    "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+|" + _KANJI_AND_KANA
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_JAIS2 = "".join(rf"|\s{{{size}}}(?!\S)" for size in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))
_BAILING = r"'(?i:[sdmt]|ll|ve|re)" + _WORD + r"|\p{N}" + _SIGNS + r"|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED = _CONTRACTIONS + _WORD + r"|\p{N}| ?[^\s\p{L}\p{N}\r\n]+" + _SPACES
_EXAONE_MOE = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?"
    + r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_FALCON_SIGNS = r"[\p{P}\$\+<=>\^~\|`]+"
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")  # llama.cpp's, for files without a name

_PLAIN_GPT2 = Splitting((_GPT2,))
_STARCODER = Splitting((r"\p{N}", _GPT2))
_LIKE_LLAMA3 = Splitting((_LLAMA3,), whole_words=True, begins_with_bos=True)
_LIKE_QWEN2 = Splitting((_QWEN2,), compose=True)
_LIKE_TEKKEN = Splitting((_TEKKEN,), whole_words=True, begins_with_bos=True)
_LIKE_GPT4O = Splitting((_GPT4O,))

_NAMES: tuple[tuple[Splitting, str], ...] = (
    (Splitting(_DEFAULT), "default"),
    (_PLAIN_GPT2, "gpt-2 gpt2 phi-2 gigachat a.x-4.0 mellum exaone4 jais trillion granite-docling"),
    (replace(_PLAIN_GPT2, compose=True), "olmo mpt modern-bert"),
    (_STARCODER, "starcoder refact smollm codeshell exaone minerva-7b mellum2"),
    (replace(_STARCODER, compose=True), "command-r"),
    (_LIKE_LLAMA3, "llama-bpe llama-v3 llama3 falcon3 falcon-h1 midm-2.0 lfm2"),
    (Splitting((_LLAMA3,)), "smaug-bpe dbrx chatglm-bpe"),
    (Splitting((_LLAMA3,), whole_words=True), "glm4 glm5"),
    (Splitting((_LLAMA3.removesuffix(r"|\s+(?!\S)|\s+") + _JAIS2 + r"|\s{1}",)), "jais-2"),
    (_LIKE_QWEN2, "qwen2 deepseek-r1-qwen f2llmv2 hunyuan"),
    (replace(_LIKE_QWEN2, compose=False), "stablelm2 solar-open grok-2 kormo megrez"),
    (Splitting((_QWEN35,), compose=True), "qwen35"),
    (Splitting((r"[^\n]+|[\n]+", _QWEN2)), "laguna"),
    (Splitting((_QWEN2.removeprefix(_CONTRACTIONS + "|"),)), "ufakzeka"),
    (Splitting((r"\p{N}{1,3}", _LLAMA3.replace("{1,3}", "+")), whole_words=True), "minicpm5"),
    (_LIKE_TEKKEN, "tekken pixtral"),
    (_LIKE_GPT4O, "kanana2 talkie minimax-m2"),
    (replace(_LIKE_GPT4O, whole_words=True), "gpt-4o llama4 granite-embed-multi-97m"),
    (Splitting((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)), "tiny_aya cohere2moe"),
    (Splitting((_KIMI,)), "kimi-k2"),
    (Splitting(_DEEPSEEK_LLM), "deepseek-llm"),
    (Splitting(_DEEPSEEK_CODER), "deepseek-coder"),
    (Splitting(_DEEPSEEK_V3), "deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
    (Splitting(_SPARK), "spark2_5"),
    (Splitting((_YOUTU, _GPT4O.replace("{1,3}", "")), whole_words=True), "youtu"),
    (Splitting((_FALCON_SIGNS, _GPT2, r"[0-9][0-9][0-9]")), "falcon"),
    (Splitting((_BLOOM,)), "bloom poro-chat gpt3-finnish"),
    (Splitting((_BLOOM, r"\p{N}")), "viking"),
    (Splitting((_BAILING,)), "bailingmoe bailingmoe2 llada-moe"),
    (Splitting((_SEED,)), "seed-coder"),
    (Splitting((_EXAONE_MOE,)), "exaone-moe"),
)
SPLITTINGS: dict[str, Splitting] = {name: split for split, names in _NAMES for name in names.split()}
