"""Files of Mistral's tokenizers: those that mistral-common brings, and a small tekken.json."""

import base64
import importlib.util
import shutil
from pathlib import Path

import pytest

from tests.text.test_tekken import VOCABULARY, write

FILES = {
    "v1": ("tokenizer.model.v1", "tokenizer.model.v1"),
    "v2": ("mistral_instruct_tokenizer_240216.model.v2", "tokenizer.model.v2"),
    "v3": ("mistral_instruct_tokenizer_240323.model.v3", "tokenizer.model.v3"),
    "v7": ("mistral_instruct_tokenizer_241114.model.v7", "tokenizer.model.v7"),
}


def needs_mistral_common() -> None:
    pytest.importorskip("mistral_common", reason="mistral_common is not installed")
    pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")


def folder_of(kind: str, folder: Path) -> Path:
    """A folder with one tokenizer: a key of FILES, or a version of a small tekken.json, such as tekken-v13."""
    if kind.startswith("tekken-"):
        return _tekken(kind.removeprefix("tekken-"), folder)
    found = importlib.util.find_spec("mistral_common")
    assert found is not None
    assert found.origin is not None
    name, own = FILES[kind]
    shutil.copy(Path(found.origin).parent / "data" / name, folder / own)
    return folder


def _tekken(version: str, folder: Path) -> Path:
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    known = [str(token["token_str"].value) for token in Tekkenizer.DEPRECATED_SPECIAL_TOKENS]
    later = ["[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "[MODEL_SETTINGS]", "[/MODEL_SETTINGS]"]
    specials = [
        {"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(dict.fromkeys(known + later))
    ]
    vocabulary = [
        {"rank": rank, "token_bytes": base64.b64encode(each).decode(), "token_str": None}
        for rank, each in enumerate(VOCABULARY)
    ]
    config = {"version": version, "default_num_special_tokens": 60, "default_vocab_size": 60 + len(VOCABULARY) - 1}
    efforts = {"accepts_none": True, "default": "none", "values": ["none", "high"]}
    settings = {"model_settings_builder": {"reasoning_effort": efforts}} if version == "v15" else {}
    return write(folder, config=config, special_tokens=specials, vocab=vocabulary, **settings)
