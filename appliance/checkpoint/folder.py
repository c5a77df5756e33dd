"""Reads ModelFacts of a Hugging Face folder: config, generation config, tokenizer files and safetensors headers."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from appliance.base.texts import NotUtf8Error, utf8_text, without_mark
from appliance.checkpoint import (
    aqlm,
    awq,
    bitsandbytes,
    compressed_tensors,
    float4,
    float8,
    gptq,
    hqq,
    mistral,
    modelopt,
    quark,
    tensorizer,
    torchao,
)
from appliance.checkpoint.config import derive_geometry, normalize_config, text_config
from appliance.checkpoint.config_choice import OWN, ConfigChoice, merged, new_keys
from appliance.checkpoint.custom import read_custom
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import CheckpointFormat, ModelFacts, StoredConventions, TensorFacts, TokenizerFacts
from appliance.checkpoint.label_tokens import named_tokens
from appliance.checkpoint.lfs import refuse_pointer, refuse_pointer_file
from appliance.checkpoint.loader_choice import NO_LOADER, LoaderChoice
from appliance.checkpoint.safetensors import read_folder
from appliance.checkpoint.sentence import read_sentence
from appliance.checkpoint.sharded_state import FORM as BY_RANK
from appliance.checkpoint.sharded_state import read_index
from appliance.checkpoint.stage_heads import stage_architecture, stage_geometry
from appliance.checkpoint.token_ids import TokenIds, id_of
from appliance.checkpoint.torch_file import has_torch_files, read_torch_folder

MAX_JSON_BYTES: Final = 64_000_000
_GPT2: Final = "GPT2LMHeadModel"

# How the tensors of one matrix become one, by method: (folder, quantization_config, tensors) -> tensors.
_Join = Callable[[Path, Mapping[str, Any], Sequence[TensorFacts]], tuple[TensorFacts, ...]]
_JOINS: Final[dict[str, _Join]] = {
    compressed_tensors.METHOD: compressed_tensors.join_quantized,
    gptq.METHOD: gptq.join_gptq,
    awq.METHOD: awq.join_awq,
    aqlm.METHOD: aqlm.join_aqlm,
    float8.FP8: float8.join_fp8,
    float8.FBGEMM: float8.join_fp8,
    float4.MXFP4: float4.join_mxfp4,
    modelopt.METHOD: modelopt.join_modelopt,
    bitsandbytes.METHOD: bitsandbytes.join_bitsandbytes,
    hqq.METHOD: hqq.join_hqq,
    torchao.METHOD: torchao.join_torchao,
    quark.METHOD: quark.join_quark,
}

_READERS: Final[dict[CheckpointFormat, Callable[[Path], tuple[tuple[TensorFacts, ...], list[bytes]]]]] = {
    "safetensors": read_folder,
    "pt": read_torch_folder,
    "mistral": mistral.read_tensors,
    tensorizer.FORM: tensorizer.read_tensors,
    "dummy": lambda root: ((), [b"dummy"]),  # the digest is not that of the same folder with its weights
}


def read_folder_facts(
    root: Path,
    stated: Literal["mistral", "tensorizer", "custom", "sharded_state", "dummy"] | None = None,
    choice: ConfigChoice = OWN,
    loader: LoaderChoice = NO_LOADER,
) -> ModelFacts:
    """Reads the facts of a folder that holds weights, and config.json if the choice names none elsewhere. Raises
    CheckpointError.

    stated: dummy needs no weights, and none are read: the facts have no tensors of the model. mistral has params.json
    and Mistral's names of tensors in place of transformers'. tensorizer has one file of tensors. custom: the loader
    reads plain tensors. sharded_state was written by rank, and its index says from what. None: by what is there.
    """
    digest = hashlib.sha256()
    index = read_index(root) if stated == BY_RANK else None
    source: CheckpointFormat | None = stated if index is None else index.source
    own = _config(root, source, choice, digest)
    config = merged(own, choice.overrides)
    generation = _json(root, "generation_config.json", digest) or {}
    form: CheckpointFormat = source or ("pt" if has_torch_files(root) else "safetensors")
    tensors, headers = _tensors(root, form, loader) if index is None else (index.tensors, [index.raw])
    for header in headers:
        digest.update(header)
    of_stages = None if source in ("mistral", "dummy") else stage_architecture(config)
    architecture = _architecture(config) if of_stages is None else of_stages
    geometry = derive_geometry(normalize_config(config)) if of_stages is None else stage_geometry(config, tensors)
    if architecture == _GPT2:
        tensors = tuple(_with_gpt2_prefix(tensor) for tensor in tensors)
    method, quantization = _quantization(config) or _modelopt_settings(root, digest)
    if form == "custom" and method is not None:
        problem, way = f"states quantization {method}", "hf_overrides: {quantization_config: null}, if they are plain"
        raise CheckpointError("config.json", f"{problem}, and a loader of your own reads plain tensors", way)
    if method in _JOINS and form != "dummy" and index is None:
        tensors = _JOINS[method](root, quantization, tensors)
    sentence, more = read_sentence(root, digest)
    tokens_of = {
        "model.hf_overrides": text_config(choice.overrides),
        "generation_config.json": generation,
        "config.json": text_config(config),
    }
    tokenizer = _tokenizer(root, tokens_of, digest, geometry.vocab_size)
    return ModelFacts(
        root=str(root),
        format=form if index is None else BY_RANK,
        architecture=architecture,
        config=config,
        generation_config=generation,
        geometry=geometry,
        tokenizer=tokenizer,
        tensors=(*tensors, *more) if index is None else tensors,
        stored=StoredConventions(linear_is_transposed=architecture == _GPT2, interleaved_heads=form == "mistral"),
        sentence=sentence,
        label_token_ids=(() if sentence is None else sentence.label_token_ids) or named_tokens(root, config),
        added_keys=tuple(new_keys(own, choice.overrides)),
        quantization=None if form == "dummy" else method,  # random weights are dense
        header_sha256=digest.hexdigest(),
        loader=loader,
        shards=None if index is None else index.shards,
    )


def _tensors(root: Path, form: CheckpointFormat, loader: LoaderChoice) -> tuple[tuple[TensorFacts, ...], list[bytes]]:
    return read_custom(root, loader) if form == "custom" else _READERS[form](root)


def _config(root: Path, stated: str | None, choice: ConfigChoice, digest: "hashlib._Hash") -> dict[str, Any]:
    name = mistral.CONFIG_NAME if stated == "mistral" else "config.json"
    file = choice.file(root, name)
    config = _json(file.parent, file.name, digest)
    if config is None:
        hint = f"a model folder holds {name} and *.safetensors; model.hf_config_path names another place of {name}"
        raise CheckpointError(file.parent.name, f"there is no {name}", hint)
    return mistral.config_of(config) if stated == "mistral" else config


def _json(root: Path, name: str, digest: "hashlib._Hash") -> dict[str, Any] | None:
    """Reads the object in root/name, and adds its bytes to the digest; None if there is no such file."""
    path = root / name
    if not path.is_file():
        return None
    if path.stat().st_size > MAX_JSON_BYTES:
        raise CheckpointError(name, f"is larger than {MAX_JSON_BYTES} bytes")
    raw = path.read_bytes()
    digest.update(name.encode() + raw)
    refuse_pointer(name, raw)
    try:
        value = json.loads(without_mark(raw, name))
    except NotUtf8Error as error:
        raise CheckpointError(name, error.problem, error.hint) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(name, f"is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(name, "is not a JSON object")
    return value


def _architecture(config: dict[str, Any]) -> str:
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    raise CheckpointError(
        "config.json", "architectures is missing", 'for example: "architectures": ["LlamaForCausalLM"]'
    )


def _with_gpt2_prefix(tensor: TensorFacts) -> TensorFacts:
    """Adds the prefix that old GPT-2 checkpoints lack, as they were saved from the inner module."""
    if tensor.name.startswith(("transformer.", "lm_head.")):
        return tensor
    return TensorFacts(
        name=f"transformer.{tensor.name}",
        stored_name=tensor.stored_name,
        shape=tensor.shape,
        storage=tensor.storage,
        file=tensor.file,
        offset_bytes=tensor.offset_bytes,
        size_bytes=tensor.size_bytes,
    )


def _quantization(config: dict[str, Any]) -> tuple[str | None, dict[str, Any]] | None:
    """Returns the checkpoint's quantization method, and the config of it; None if config.json says nothing of it."""
    section = config.get("quantization_config") or text_config(config).get("quantization_config")
    if section is None:
        return None
    method = section.get("quant_method") if isinstance(section, dict) else None
    if not isinstance(method, str):
        raise CheckpointError("config.json", "quantization_config does not say its quant_method")
    return method, section


def _modelopt_settings(root: Path, digest: "hashlib._Hash") -> tuple[str | None, dict[str, Any]]:
    """Returns the method and settings of a folder that modelopt wrote without a word in config.json, if it is one."""
    settings = _json(root, modelopt.SETTINGS_NAME, digest)
    section = (settings or {}).get("quantization")
    return (modelopt.METHOD, section) if isinstance(section, dict) else (None, {})


def _tokenizer(
    root: Path, files: Mapping[str, Mapping[str, Any]], digest: "hashlib._Hash", vocab_size: int
) -> TokenizerFacts:
    """files: what may name tokens, in order of precedence."""
    settings = _json(root, "tokenizer_config.json", digest) or {}
    if (root / "tokenizer.json").is_file():
        refuse_pointer_file(root / "tokenizer.json")
        kind = "tokenizer.json"
    else:
        kind = "sentencepiece" if any(root.glob("tokenizer.model*")) else "none"
        kind = "tekken" if (root / mistral.TOKENIZER_NAME).is_file() else kind
    ids = TokenIds(vocab_size)
    eos = ids.first_stated("eos_token_id", files)
    # vLLM stops at the tokenizer's own token too: fine-tunes often have a new one beside an old generation config.
    own = id_of(settings.get("eos_token"), settings.get("added_tokens_decoder"))
    eos += [each for each in ids.several("tokenizer_config.json", "eos_token", own) if each not in eos]
    return TokenizerFacts(
        kind=kind,  # type: ignore[arg-type]  # one of the literal's values by the lines above
        chat_template=_chat_template(root, settings, digest),
        bos_token_id=next(iter(ids.first_stated("bos_token_id", files)), None),
        eos_token_ids=tuple(eos),
        # tokenizer.json adds BOS in its own post-processor; sentencepiece tokenizers add it by default
        add_bos=bool(settings.get("add_bos_token", kind == "sentencepiece")),
        left_out=tuple(ids.left_out),
    )


def _chat_template(root: Path, settings: dict[str, Any], digest: "hashlib._Hash") -> str | None:
    """Reads the template in transformers' order: chat_template.jinja, chat_template.json, tokenizer_config.json."""
    jinja = root / "chat_template.jinja"
    if jinja.is_file():
        raw = jinja.read_bytes()
        digest.update(raw)
        try:
            return utf8_text(raw, jinja.name)
        except NotUtf8Error as error:
            raise CheckpointError(jinja.name, error.problem, error.hint) from error
    stated = (_json(root, "chat_template.json", digest) or settings).get("chat_template")
    if isinstance(stated, list):
        named = {item.get("name"): item.get("template") for item in stated if isinstance(item, dict)}
        stated = named.get("default")
    return stated if isinstance(stated, str) else None
