"""Reads ModelFacts of a GGUF file, a single one or the first of a split set."""

import hashlib
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from appliance.checkpoint.config import derive_geometry, normalize_config
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import ModelFacts, StoredConventions, TensorFacts, TokenizerFacts
from appliance.checkpoint.gguf import GgufFile, open_gguf
from appliance.checkpoint.gguf_architectures import CONVENTIONS
from appliance.checkpoint.gguf_config import StoredTensors, gguf_architecture, translate_config
from appliance.checkpoint.gguf_drafting import drafting_name
from appliance.checkpoint.gguf_encoders import read_pooling
from appliance.checkpoint.gguf_names import ROPE_FACTORS, hugging_face_name, layer_of, module_shape
from appliance.checkpoint.gguf_values import LazyArray, MetadataValue
from appliance.checkpoint.storage import is_plain_type
from appliance.checkpoint.token_ids import TokenIds

MAX_SHARDS: Final = 1024
# Tokens that end a turn, by text: llama.cpp stops at each of them independent of the metadata, and so do we.
END_TOKENS: Final = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
)
# Names of tokenizer.ggml.pre, as in text/pre_tokenizers.py.
BEGINNING_WITH_BOS: Final = (
    "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "midm-2.0", "lfm2", "tekken", "pixtral",
)  # fmt: skip
_CONTROL: Final = 3  # llama.cpp's token type for control tokens
_SHARD_NAME: Final = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


def read_gguf_facts(path: Path) -> ModelFacts:
    """Reads the facts of one .gguf file, or of the split set whose first file it is. Raises CheckpointError."""
    with ExitStack() as stack:
        files = [stack.enter_context(open_gguf(path))]
        files += [stack.enter_context(open_gguf(shard)) for shard in _other_shards(files[0])]
        return _facts(files)


def _facts(files: list[GgufFile]) -> ModelFacts:
    first = files[0]
    architecture = gguf_architecture(first)
    stored = _stored_tensors(files)
    config = translate_config(first, stored)
    digest = hashlib.sha256()
    for file in files:
        with file.header as header:
            digest.update(header)
    for name in ROPE_FACTORS:
        if name in stored:
            file, tensor = stored[name]
            digest.update(file.read(tensor))
    geometry = derive_geometry(normalize_config(config))
    tensors = _translate(first, architecture, geometry.num_layers, stored)
    return ModelFacts(
        root=str(first.path),
        format="gguf",
        architecture=config["architectures"][0],
        config=config,
        generation_config=_generation_config(first),
        geometry=geometry,
        tokenizer=_tokenizer(first, geometry.vocab_size),
        tensors=tensors,
        sentence=read_pooling(
            first.metadata.get(f"{architecture}.pooling_type"), {name: each.shape for name, (_, each) in stored.items()}
        ),
        stored=CONVENTIONS.get(architecture, StoredConventions()),
        quantization="gguf" if any(not is_plain_type(tensor.storage) for tensor in tensors) else None,
        header_sha256=digest.hexdigest(),
    )


def _other_shards(first: GgufFile) -> list[Path]:
    count = first.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return []
    match = _SHARD_NAME.match(first.path.name)
    if match is None or int(match["count"]) != count or count > MAX_SHARDS:
        raise CheckpointError(
            first.path.name, f"is one of {count} files and not named like one", "name-00001-of-00003.gguf"
        )
    if int(match["number"]) != 1:
        raise CheckpointError(first.path.name, "is not the first file of its set", f"name {match['stem']}-00001-of-...")
    return [first.path.with_name(f"{match['stem']}-{n:05d}-of-{count:05d}.gguf") for n in range(2, count + 1)]


def _stored_tensors(files: list[GgufFile]) -> StoredTensors:
    stored: StoredTensors = {}
    for file in files:
        for tensor in file.tensors:
            if tensor.name in stored:
                raise CheckpointError(file.path.name, f"tensor {tensor.name!r} is in two files of the set")
            stored[tensor.name] = (file, tensor)
    return stored


def _translate(first: GgufFile, architecture: str, num_layers: int, stored: StoredTensors) -> tuple[TensorFacts, ...]:
    """Returns the tensors of `num_layers` layers, and of those after them that draft tokens, under their Hugging Face
    names."""
    tensors = []
    for name, (file, tensor) in stored.items():
        if name in ROPE_FACTORS:
            continue
        is_drafting = (layer := layer_of(name)) is not None and layer >= num_layers
        if is_drafting:
            translated = drafting_name(architecture, name, num_layers)
        else:
            translated = hugging_face_name(architecture, name)
        if translated is None and is_drafting:
            continue
        if translated is None:
            raise CheckpointError(
                first.path.name, f"tensor {name!r} is not one that {architecture} has in this version"
            )
        tensors.append(
            TensorFacts(
                name=translated,
                stored_name=name,
                shape=module_shape(name, tensor.shape),
                storage=tensor.storage,
                file=file.path.name,
                offset_bytes=tensor.offset_bytes,
                size_bytes=tensor.size_bytes,
            )
        )
    return tuple(tensors)


def _generation_config(file: GgufFile) -> dict[str, MetadataValue]:
    """Returns the sampling parameters that the file recommends (general.sampling.*), by generation_config's names."""
    names = {
        "temp": "temperature",
        "top_k": "top_k",
        "top_p": "top_p",
        "min_p": "min_p",
        "penalty_repeat": "repetition_penalty",
    }
    found = {name: file.metadata.get(f"general.sampling.{key}") for key, name in names.items()}
    return {name: value for name, value in found.items() if value is not None and not isinstance(value, LazyArray)}


def _tokenizer(file: GgufFile, vocab_size: int) -> TokenizerFacts:
    metadata, ids = file.metadata, TokenIds(vocab_size)
    template, bos = metadata.get("tokenizer.chat_template"), "tokenizer.ggml.bos_token_id"
    tokens = metadata.get("tokenizer.ggml.tokens")
    return TokenizerFacts(
        kind="gguf" if isinstance(tokens, LazyArray) else "none",
        chat_template=template if isinstance(template, str) else None,
        bos_token_id=ids.one(file.path.name, bos, metadata.get(bos)),
        eos_token_ids=_end_tokens(file, ids),
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", _adds_bos_by_default(file))),
        left_out=tuple(ids.left_out),
    )


def _end_tokens(file: GgufFile, of_model: TokenIds) -> tuple[int, ...]:
    """Returns the stated ids, then the control tokens whose text ends a turn."""
    keys = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    ids = [token_id for key in keys for token_id in of_model.several(file.path.name, key, file.metadata.get(key))]
    tokens, types = file.metadata.get("tokenizer.ggml.tokens"), file.metadata.get("tokenizer.ggml.token_type")
    if isinstance(tokens, LazyArray) and isinstance(types, LazyArray):
        found = (tokens.find(text) for text in END_TOKENS)
        ids += [index for index in found if index is not None and index < len(types) and types[index] == _CONTROL]
    return tuple(dict.fromkeys(ids))


def _adds_bos_by_default(file: GgufFile) -> bool:
    """Returns llama.cpp's default: SentencePiece vocabularies, and some byte-pair ones, begin with BOS."""
    if file.metadata.get("tokenizer.ggml.model") == "llama":
        return True
    return file.metadata.get("tokenizer.ggml.pre") in BEGINNING_WITH_BOS
