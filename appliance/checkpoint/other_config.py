"""Another config for facts that were read with the checkpoint's own."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from appliance.base.hashing import sha256_hex
from appliance.base.texts import without_mark
from appliance.checkpoint.config import derive_geometry, normalize_config, text_config
from appliance.checkpoint.config_choice import ConfigChoice, merged, new_keys
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import ModelFacts, TokenizerFacts
from appliance.checkpoint.token_ids import TokenIds

_WHERE = "model.hf_overrides"


def with_config(facts: ModelFacts, choice: ConfigChoice) -> ModelFacts:
    """Returns the facts of a GGUF file with another config than its metadata make. Raises CheckpointError.

    What the file says of its tokenizer stays, but for ids of tokens that the overrides name.
    """
    if choice.path is None and not choice.overrides:
        return facts
    own, digest = facts.config, facts.header_sha256
    if choice.path is not None:
        file = choice.file(Path(facts.root).parent, "config.json")
        own, digest = _read(file), sha256_hex(digest.encode() + file.read_bytes())
    config = merged(own, choice.overrides)
    return msgspec.structs.replace(
        facts,
        architecture=_architecture(config, facts),
        config=config,
        geometry=(geometry := derive_geometry(normalize_config(config))),
        tokenizer=_tokenizer(facts.tokenizer, text_config(choice.overrides), geometry.vocab_size),
        added_keys=tuple(new_keys(own, choice.overrides)),
        header_sha256=digest,
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(without_mark(file.read_bytes(), file.name))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(file.name, f"of model.hf_config_path cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(file.name, "of model.hf_config_path is not a JSON object")
    return value


def _architecture(config: Mapping[str, Any], facts: ModelFacts) -> str:
    stated = config.get("architectures") or [facts.architecture]
    if not isinstance(stated, list) or not isinstance(stated[0], str):
        raise CheckpointError("config.json", f"architectures is {stated!r}; a list of names is expected")
    return stated[0]


def _tokenizer(own: TokenizerFacts, stated: Mapping[str, Any], vocab_size: int) -> TokenizerFacts:
    ids = TokenIds(vocab_size)
    bos, ends = (ids.several(_WHERE, key, stated.get(key)) for key in ("bos_token_id", "eos_token_id"))
    return msgspec.structs.replace(
        own,
        bos_token_id=bos[0] if bos else own.bos_token_id,
        eos_token_ids=tuple(ends) or own.eos_token_ids,
        left_out=(*own.left_out, *ids.left_out),
    )
