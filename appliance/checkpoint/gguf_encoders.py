"""What GGUF files of models that embed say: names of tensors, metadata beyond the common keys, and pooling."""

from collections.abc import Mapping
from typing import Any, Final

from appliance.catalog.pooling import PoolingKind
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import DenseFacts, SentenceFacts
from appliance.checkpoint.gguf_hybrids import Change, Json

_BERT: Final = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "blk.{n}.attn_q": "encoder.layer.{n}.attention.self.query",
    "blk.{n}.attn_k": "encoder.layer.{n}.attention.self.key",
    "blk.{n}.attn_v": "encoder.layer.{n}.attention.self.value",
    "blk.{n}.attn_output": "encoder.layer.{n}.attention.output.dense",
    "blk.{n}.attn_output_norm": "encoder.layer.{n}.attention.output.LayerNorm",
    "blk.{n}.ffn_up": "encoder.layer.{n}.intermediate.dense",
    "blk.{n}.ffn_down": "encoder.layer.{n}.output.dense",
    "blk.{n}.layer_output_norm": "encoder.layer.{n}.output.LayerNorm",
    "cls": "classifier.dense",
    "cls.output": "classifier.out_proj",
}
_NOMIC: Final = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "emb_ln",
    "blk.{n}.attn_qkv": "encoder.layers.{n}.attn.Wqkv",
    "blk.{n}.attn_output": "encoder.layers.{n}.attn.out_proj",
    "blk.{n}.attn_output_norm": "encoder.layers.{n}.norm1",
    "blk.{n}.ffn_up": "encoder.layers.{n}.mlp.fc11",
    "blk.{n}.ffn_gate": "encoder.layers.{n}.mlp.fc12",
    "blk.{n}.ffn_down": "encoder.layers.{n}.mlp.fc2",
    "blk.{n}.layer_output_norm": "encoder.layers.{n}.norm2",
}
_MODERN_BERT: Final = {
    "token_embd": "embeddings.tok_embeddings",
    "token_embd_norm": "embeddings.norm",
    "output_norm": "final_norm",
    "blk.{n}.attn_norm": "layers.{n}.attn_norm",
    "blk.{n}.attn_qkv": "layers.{n}.attn.Wqkv",
    "blk.{n}.attn_output": "layers.{n}.attn.Wo",
    "blk.{n}.ffn_norm": "layers.{n}.mlp_norm",
    "blk.{n}.ffn_up": "layers.{n}.mlp.Wi",
    "blk.{n}.ffn_down": "layers.{n}.mlp.Wo",
    "cls": "head.dense",
    "cls.norm": "head.norm",
    "cls.output": "classifier",
}
ENCODER_NAMES: Final = {"bert": _BERT, "nomic-bert": _NOMIC, "modern-bert": _MODERN_BERT}
# The dense modules of a sentence-transformers folder, in their order.
DENSE_NAMES: Final = {"dense_2": "2_Dense.linear", "dense_3": "3_Dense.linear"}
_POOLING: Final[dict[int, PoolingKind]] = {1: "mean", 2: "cls", 3: "last"}  # llama.cpp's numbers
_RANK: Final = 4  # a classifier follows
_CLASSIFIER: Final = "cls.output.weight"
_EVERY: Final = 3  # of ModernBERT's layers is full, where a file says nothing


def read_pooling(number: Any, shapes: Mapping[str, tuple[int, ...]]) -> SentenceFacts | None:
    """Returns how the file's vectors are made, by its number of the kind of pooling; None for a model that generates or
    classifies. shapes: those of tensors, by stored name. Raises CheckpointError for an unknown kind."""
    if number in (None, 0, _RANK):
        return None
    if number not in _POOLING:
        known = ", ".join(f"{key} ({kind})" for key, kind in _POOLING.items())
        raise CheckpointError("GGUF", f"pooling_type is {number!r}, which is not in this version", f"known: {known}")
    dense = [
        DenseFacts(
            name=name.removesuffix(".linear"), out_features=shapes[f"{stored}.weight"][0], bias=False, activation=None
        )
        for stored, name in DENSE_NAMES.items()
        if f"{stored}.weight" in shapes
    ]
    return SentenceFacts(
        kind=_POOLING[number],
        normalize=True,
        dense=tuple(dense),
        prompts={},
        default_prompt=None,
        max_length=None,
        similarity="cosine",
    )


def _bert(config: Json, values: Json) -> None:
    """RoBERTa and XLM-R are BERT here: a file's position table begins with the row of the first token. Raises
    CheckpointError for a classifier that is not RoBERTa's: converters leave the map before it out of BERT's files, and
    the activation of DistilBERT's is another."""
    _labels(config, values)
    if _CLASSIFIER not in values["tensors"]:
        return
    if not {"cls.weight", "token_types.weight"} <= values["tensors"]:
        message = "classifiers of BERT and DistilBERT are not whole in such a file, and their scores would be others"
        raise CheckpointError("GGUF", message, "use the checkpoint's safetensors")
    config["architectures"] = ["BertForSequenceClassification"]


def _modern_bert(config: Json, values: Json) -> None:
    _labels(config, values)
    every = values.get("attention.sliding_window_pattern", _EVERY)
    if isinstance(every, list):
        config["layer_types"] = ["sliding_attention" if windowed else "full_attention" for windowed in every]
    else:
        config["global_attn_every_n_layers"] = every
    config["hidden_act"] = values.get("hidden_activation", "gelu")
    bases = {"global_rope_theta": config.pop("rope_theta", None)}
    bases["local_rope_theta"] = config.pop("rope_local_base_freq", None)
    config |= {key: base for key, base in bases.items() if base is not None}
    if _CLASSIFIER in values["tensors"]:
        config["architectures"] = ["ModernBertForSequenceClassification"]
        config["classifier_pooling"] = _POOLING.get(values.get("classifier.pooling_type", 1), "mean")


def _labels(config: Json, values: Json) -> None:
    labels: Any = values.get("classifier.output_labels")
    if isinstance(labels, list) and _CLASSIFIER in values["tensors"]:
        config["id2label"] = {str(number): str(label) for number, label in enumerate(labels)}


ENCODER_CHANGES: Final[dict[str, Change]] = {"bert": _bert, "modern-bert": _modern_bert}
