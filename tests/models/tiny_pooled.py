"""Tiny random checkpoints of models that pool: encoders, decoders with a classifier, and their heads."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from appliance.catalog.pooling import PoolingChoice, PoolingKind, PoolingTask
from tests.models.tiny import randomize

_SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96,
    "max_position_embeddings": 66, "id2label": {0: "no", 1: "maybe", 2: "yes"},
}  # fmt: skip
LENGTHS = (1, 17, 5, 40)  # of the prompts that run in one step


def _bert(**changes: Any) -> Any:
    return transformers.BertConfig(**_SIZES, **changes)


def _distilbert() -> Any:
    sizes = {"dim": 48, "n_layers": 3, "n_heads": 4, "hidden_dim": 96}
    others = {key: _SIZES[key] for key in ("vocab_size", "max_position_embeddings", "id2label")}
    return transformers.DistilBertConfig(**sizes, **others)


def _modernbert() -> Any:
    ends = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    return transformers.ModernBertConfig(**_SIZES, **ends, local_attention=8)


def _embedding_gemma() -> Any:
    sizes = _SIZES | {"num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0}
    return transformers.Gemma3TextConfig(
        **sizes, use_bidirectional_attention=True, sliding_window=12, sliding_window_pattern=2, query_pre_attn_scalar=16
    )


def _qwen3(**changes: Any) -> Any:
    sizes = _SIZES | {"num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0}
    return transformers.Qwen3Config(**sizes, **changes)


class Qwen2ForRewardModel(transformers.Qwen2ForTokenClassification):  # type: ignore[misc]
    """Qwen2.5-Math-RM's head, in its own code two maps with a ReLU between them."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.score = torch.nn.Sequential(
            torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, config.num_labels)
        )


class Qwen2ForProcessRewardModel(Qwen2ForRewardModel):
    """Qwen2.5-Math-PRM's, with two numbers a token."""


def _qwen2(labels: int) -> Any:
    sizes = {key: value for key, value in _SIZES.items() if key != "id2label"}
    return transformers.Qwen2Config(**sizes, num_key_value_heads=2, pad_token_id=0, num_labels=labels)


class Pooled(NamedTuple):
    """A checkpoint: its config, the transformers class, and what is asked of it."""

    config: Callable[[], Any]
    model: type
    task: PoolingTask
    kind: PoolingKind
    model_type: str | None = None  # in config.json, if it is not the class's own
    original_names: bool = True  # of tensors, as the hub has them; else those of transformers

    @property
    def choice(self) -> PoolingChoice:
        return PoolingChoice(task=self.task, kind=self.kind)


POOLED: dict[str, Pooled] = {
    "bert-mean": Pooled(_bert, transformers.BertModel, "embed", "mean"),
    "bert-all": Pooled(_bert, transformers.BertModel, "embed", "all"),
    "bert-classify": Pooled(_bert, transformers.BertForSequenceClassification, "classify", "cls"),
    "bert-score": Pooled(
        lambda: transformers.BertConfig(**{**_SIZES, "id2label": {0: "yes"}}),
        transformers.BertForSequenceClassification,
        "score",
        "cls",
    ),
    "bert-tokens": Pooled(_bert, transformers.BertForTokenClassification, "classify", "all"),
    "roberta-cls": Pooled(lambda: transformers.RobertaConfig(**_SIZES), transformers.RobertaModel, "embed", "cls"),
    "roberta-classify": Pooled(
        lambda: transformers.RobertaConfig(**_SIZES), transformers.RobertaForSequenceClassification, "classify", "cls"
    ),
    "xlm-roberta-score": Pooled(
        lambda: transformers.XLMRobertaConfig(**{**_SIZES, "id2label": {0: "yes"}}),
        transformers.XLMRobertaForSequenceClassification,
        "score",
        "cls",
    ),
    "distilbert-mean": Pooled(_distilbert, transformers.DistilBertModel, "embed", "mean"),
    "distilbert-classify": Pooled(_distilbert, transformers.DistilBertForSequenceClassification, "classify", "cls"),
    "mpnet-mean": Pooled(lambda: transformers.MPNetConfig(**_SIZES), transformers.MPNetModel, "embed", "mean"),
    "modernbert-mean": Pooled(_modernbert, transformers.ModernBertModel, "embed", "mean"),
    "modernbert-classify": Pooled(_modernbert, transformers.ModernBertForSequenceClassification, "classify", "cls"),
    "nomic-mean": Pooled(lambda: transformers.NomicBertConfig(**_SIZES), transformers.NomicBertModel, "embed", "mean"),
    "gte-classify": Pooled(
        lambda: transformers.GteConfig(**_SIZES), transformers.GteForSequenceClassification, "classify", "cls"
    ),
    "nomic-cls": Pooled(
        lambda: transformers.NomicBertConfig(**_SIZES),
        transformers.NomicBertModel,
        "embed",
        "cls",
        original_names=False,
    ),
    "new-cls": Pooled(
        lambda: transformers.GteConfig(**_SIZES), transformers.GteModel, "embed", "cls", model_type="new"
    ),
    "gemma-mean": Pooled(_embedding_gemma, transformers.Gemma3TextModel, "embed", "mean"),
    "qwen3-last": Pooled(_qwen3, transformers.Qwen3ForCausalLM, "embed", "last"),
    "qwen3-mean": Pooled(_qwen3, transformers.Qwen3Model, "embed", "mean"),
    "qwen3-classify": Pooled(_qwen3, transformers.Qwen3ForSequenceClassification, "classify", "last"),
    "qwen2-reward": Pooled(lambda: _qwen2(1), Qwen2ForRewardModel, "classify", "all"),
    "qwen2-process-reward": Pooled(lambda: _qwen2(2), Qwen2ForProcessRewardModel, "classify", "all"),
    "qwen3-tokens": Pooled(_qwen3, transformers.Qwen3ForTokenClassification, "classify", "all"),
}


def make_pooled(name: str, folder: Path) -> torch.nn.Module:
    """Saves a checkpoint in `folder` and returns the model, f32, in evaluation mode, with eager attention."""
    pooled = POOLED[name]
    torch.manual_seed(sum(name.encode()))
    config = pooled.config()
    config._attn_implementation = "eager"
    model = pooled.model(config).float()
    randomize(model)
    model.save_pretrained(folder, save_original_format=pooled.original_names)
    if pooled.model_type is not None:
        path = folder / "config.json"
        written = json.loads(path.read_text()) | {"model_type": pooled.model_type, "architectures": ["NewModel"]}
        path.write_text(json.dumps(written))
    return model.eval()


@torch.inference_mode()
def pooled_by_torch(name: str, model: torch.nn.Module, token_ids: list[int]) -> torch.Tensor:
    """Returns what transformers makes of one prompt: f32 [W], or [n, W] if all tokens are pooled."""
    pooled = POOLED[name]
    ids = torch.tensor([token_ids])
    if pooled.task != "embed":
        return model(ids).logits[0]
    base = getattr(model, model.base_model_prefix) if hasattr(model, "lm_head") else model
    rows = base(ids).last_hidden_state[0]
    return {"mean": lambda: rows.mean(0), "cls": lambda: rows[0], "last": lambda: rows[-1], "all": lambda: rows}[
        pooled.kind
    ]()


WORDS = ("the", "cat", "sat", "on", "a", "mat", "dog", "ran", "far", "away", "blue", "sky", "is", "what", "who")


def write_tokenizer(folder: Path, *, ends: str = "[CLS] [SEP]") -> None:
    """Writes a WordPiece tokenizer with `ends` around a text, and between the texts of a pair, whose types differ."""
    first, last = ends.split()
    names = ["[PAD]", "[UNK]", first, last, "<|end|>", "yes", "no", *WORDS, *(f"##{letter}" for letter in "abcdefst")]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(first, vocabulary[first]), (last, vocabulary[last])],
    )
    tokenizer.enable_truncation(8)  # as many files on the hub have it: it must not count
    tokenizer.save(str(folder / "tokenizer.json"))


def write_sentence_files(folder: Path, **settings: Any) -> None:
    """Makes the folder one of sentence-transformers: mean pooling, normalized. settings: those beside the prompts."""
    kind = "sentence_transformers.models"
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{kind}.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{kind}.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{kind}.Normalize"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
