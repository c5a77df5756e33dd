"""Reads the modules of a sentence-transformers folder: how its embeddings are pooled, mapped and normalized."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from appliance.catalog.pooling import PoolingKind
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import DenseFacts, SentenceFacts, TensorFacts
from appliance.checkpoint.label_tokens import score_tokens
from appliance.checkpoint.safetensors import read_header

MODULES: Final = "modules.json"
SETTINGS: Final = "config_sentence_transformers.json"
_LENGTHS: Final = "sentence_bert_config.json"
_WEIGHTS: Final = "model.safetensors"
_KINDS: Final[Mapping[str, PoolingKind]] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
_KIND_NAMES: Final[Mapping[str, PoolingKind]] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
_SCORES: Final = ("LogitScore", "CausalScoreHead")  # one module, by its name and by an older one
_Activation = Literal["tanh", "relu", "gelu"] | None
_ACTIVATIONS: Final[Mapping[str, _Activation]] = {"Identity": None, "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu"}


class _Module(msgspec.Struct):
    path: str
    type: str

    @property
    def kind(self) -> str:
        """The last part of the type's dotted name."""
        return self.type.rpartition(".")[2]


def read_sentence(root: Path, digest: "hashlib._Hash") -> tuple[SentenceFacts | None, tuple[TensorFacts, ...]]:
    """Returns the facts of the folder's modules and the tensors of its dense ones; None without modules.json.

    Raises CheckpointError for modules and ways of pooling that are not in this version.
    """
    if not (root / MODULES).is_file():
        return None, ()
    modules = _modules(_read(root, MODULES, digest))
    settings = _object(root, SETTINGS, digest)
    prompts = settings.get("prompts") or {}
    kind: PoolingKind | None = None
    normalize, dense, tensors = False, [], []
    labels: tuple[int, ...] = ()
    for module in modules:
        if module.kind == "Pooling":
            kind = _pooling(module.path, _object(root, f"{module.path}/config.json", digest))
        elif module.kind == "Normalize":
            normalize = True
        elif module.kind == "Dense":
            one, found = _dense(root, module.path, digest)
            dense.append(one)
            tensors += found
        elif module.kind in _SCORES:
            labels = score_tokens(f"{module.path}/config.json", _object(root, f"{module.path}/config.json", digest))
        elif module.kind != "Transformer":
            problem = f"names the module {module.type!r}, which is not in this version"
            raise CheckpointError(MODULES, problem, "allowed: Transformer, Pooling, Dense, Normalize, LogitScore")
    length = _object(root, _LENGTHS, digest).get("max_seq_length")
    facts = SentenceFacts(
        kind=kind,
        normalize=normalize,
        dense=tuple(dense),
        prompts={str(name): text for name, text in prompts.items() if isinstance(text, str)},
        default_prompt=settings.get("default_prompt_name"),
        max_length=length if isinstance(length, int) and length > 0 else None,
        label_token_ids=labels,
        activation=settings.get("activation_fn"),
        similarity=str(settings.get("similarity_fn_name") or "cosine"),
    )
    return facts, tuple(tensors)


def _modules(raw: bytes) -> list[_Module]:
    try:
        return msgspec.json.decode(raw, type=list[_Module])
    except msgspec.DecodeError as error:
        raise CheckpointError(MODULES, f"is not a list of modules: {error}") from error


def _pooling(path: str, config: Mapping[str, Any]) -> PoolingKind:
    file = f"{path}/config.json"
    if config.get("include_prompt") is False:
        raise CheckpointError(file, "leaves the prompt out of the pooling, which is not in this version")
    stated = config.get("pooling_mode")
    if stated is not None:
        names = [stated]
        kinds = [_KIND_NAMES[stated]] if stated in _KIND_NAMES else []
    else:
        names = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
        kinds = [_KINDS[name] for name in names if name in _KINDS]
    if len(kinds) != 1 or len(names) != 1:
        problem = f"pools by {', '.join(map(str, names)) or 'nothing'}, which is not in this version"
        raise CheckpointError(file, problem, "allowed: one of cls, mean and lasttoken")
    return kinds[0]


def _dense(root: Path, path: str, digest: "hashlib._Hash") -> tuple[DenseFacts, list[TensorFacts]]:
    config, weights = _object(root, f"{path}/config.json", digest), f"{path}/{_WEIGHTS}"
    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if name not in _ACTIVATIONS:
        problem = f"has the activation {name!r}, which is not in this version"
        raise CheckpointError(f"{path}/config.json", problem, f"allowed: {', '.join(_ACTIVATIONS)}")
    if not (root / weights).is_file():
        raise CheckpointError(weights, "is missing", "dense modules are read from safetensors")
    header = read_header(root, weights)
    digest.update(header.raw)
    found = [msgspec.structs.replace(tensor, name=f"{path}.{tensor.name}") for tensor in header.tensors]
    has_bias = any(tensor.stored_name == "linear.bias" for tensor in found)
    sizes = {tensor.stored_name: tensor.shape for tensor in found}
    if len(sizes.get("linear.weight", ())) != 2:
        raise CheckpointError(weights, "has no matrix linear.weight")
    facts = DenseFacts(name=path, out_features=sizes["linear.weight"][0], bias=has_bias, activation=_ACTIVATIONS[name])
    return facts, found


def _object(root: Path, name: str, digest: "hashlib._Hash") -> dict[str, Any]:
    """Reads a JSON object; an empty one if there is no such file."""
    if not (root / name).is_file():
        return {}
    try:
        value = json.loads(_read(root, name, digest))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(name, f"is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(name, "is not a JSON object")
    return value


def _read(root: Path, name: str, digest: "hashlib._Hash") -> bytes:
    raw = (root / name).read_bytes()
    digest.update(name.encode() + raw)
    return raw
