"""ModelFacts of real checkpoints without the checkpoints: from public configs, or from the tensor tables of GGUF files.

`configs/` holds config.json values as published; the tensors of those checkpoints follow from them. `headers/` holds
the header of a GGUF file without its vocabulary, written by `python -m tests.plan.update_golden --headers NAME FILE`.
"""

import json
import re
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from appliance.checkpoint.config import derive_geometry, normalize_config
from appliance.checkpoint.facts import ModelFacts, StoredConventions, TensorFacts, TokenizerFacts
from appliance.checkpoint.read import read_model_facts
from appliance.models.random_weights import stated_shapes

DATA = Path(__file__).parent.parent / "golden"
STORAGE = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
ELEMENT_BYTES = {"bf16": 2, "f16": 2, "f32": 4}
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"

Tensor = tuple[str, tuple[int, ...]]


class Coded(NamedTuple):
    """Matrices that a checkpoint stores as codes: of which names, and what a group of codes takes."""

    names: re.Pattern[str]
    storage: str
    method: str
    bits: int
    group: int  # codes with one scale
    scale_bytes: int


MXFP4_EXPERTS = Coded(re.compile(r"experts\.\d*\.?(gate_up|down)_proj$"), "mxfp4", "mxfp4", 4, 32, 1)
FP8_ROWS = Coded(re.compile(r"layers.*_proj\.weight$"), "f8_channel", "compressed-tensors", 8, 4096, 4)
FP8_BLOCKS = Coded(re.compile(r"layers.*_proj(_with_mqa)?\.weight$"), "f8_g128", "fp8", 8, 128 * 128, 4)


def from_config(name: str, **changes: Any) -> ModelFacts:
    """A safetensors checkpoint of a published config, all tensors in its dtype."""
    config = json.loads((DATA / "configs" / f"{name}.json").read_text()) | changes
    storage = STORAGE[config.get("torch_dtype", "float32")]
    tensors, offset = [], 0
    for tensor_name, shape in _tensors(config):
        size = prod(shape) * ELEMENT_BYTES[storage]
        tensors.append(_tensor(tensor_name, tensor_name, shape, storage, "model.safetensors", offset, size))
        offset += size
    return ModelFacts(
        root=f"/models/{name}",
        format="safetensors",
        architecture=config["architectures"][0],
        config=config,
        generation_config={},
        geometry=derive_geometry(normalize_config(config)),
        tokenizer=_tokenizer("tokenizer.json"),
        tensors=tuple(tensors),
        stored=StoredConventions(linear_is_transposed=config["model_type"] == "gpt2"),
        quantization=None,
        header_sha256=name.ljust(64, "0"),
    )


def described_by_itself(model: ModelFacts, storage: str = "bf16", coded: Coded | None = None) -> ModelFacts:
    """The model with the tensors that its family reads, in the shapes that its program has.

    coded: the matrices that are stored as codes.
    """
    shapes = stated_shapes(msgspec.structs.replace(model, tensors=()))

    def tensor(name: str, shape: tuple[int, ...]) -> TensorFacts:
        if coded is None or len(shape) < 2 or not coded.names.search(name):
            return _tensor(name, name, shape, storage, "model.safetensors", 0, prod(shape) * 2)
        size = prod(shape) * coded.bits // 8 + prod(shape) // coded.group * coded.scale_bytes
        return _tensor(name, name, shape, coded.storage, "model.safetensors", 0, size)

    tensors = tuple(tensor(name, shape) for name, shape in shapes.items())
    quantization = model.quantization if coded is None else coded.method
    return msgspec.structs.replace(model, tensors=tensors, quantization=quantization)


def _tensors(config: dict[str, Any]) -> Iterator[Tensor]:
    """Yields none for families whose tensors are not written down here: `described_by_itself` has those."""
    families = {"gpt2": _gpt2, "deepseek_v3": _deepseek, "llama": _llama, "mistral": _llama, "mixtral": _llama}
    if config["model_type"] in families:
        yield from families[config["model_type"]](config)


def _deepseek(config: dict[str, Any]) -> Iterator[Tensor]:
    """Names and shapes of DeepSeek V3, without the layer that drafts tokens."""
    hidden, heads, vocab = config["hidden_size"], config["num_attention_heads"], config["vocab_size"]
    queries, latent, rope = config["q_lora_rank"], config["kv_lora_rank"], config["qk_rope_head_dim"]
    nope, value = config["qk_nope_head_dim"], config["v_head_dim"]
    yield from (("model.embed_tokens.weight", (vocab, hidden)), ("lm_head.weight", (vocab, hidden)))
    yield "model.norm.weight", (hidden,)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (hidden,)
        yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
        yield f"{prefix}.self_attn.q_a_proj.weight", (queries, hidden)
        yield f"{prefix}.self_attn.q_a_layernorm.weight", (queries,)
        yield f"{prefix}.self_attn.q_b_proj.weight", (heads * (nope + rope), queries)
        yield f"{prefix}.self_attn.kv_a_proj_with_mqa.weight", (latent + rope, hidden)
        yield f"{prefix}.self_attn.kv_a_layernorm.weight", (latent,)
        yield f"{prefix}.self_attn.kv_b_proj.weight", (heads * (nope + value), latent)
        yield f"{prefix}.self_attn.o_proj.weight", (hidden, heads * value)
        yield from _deepseek_feed_forward(config, layer, f"{prefix}.mlp")


def _deepseek_feed_forward(config: dict[str, Any], layer: int, prefix: str) -> Iterator[Tensor]:
    hidden, experts = config["hidden_size"], config["n_routed_experts"]
    if layer < config["first_k_dense_replace"]:
        blocks = {prefix: config["intermediate_size"]}
    else:
        yield f"{prefix}.gate.weight", (experts, hidden)
        yield f"{prefix}.gate.e_score_correction_bias", (experts,)
        width = config["moe_intermediate_size"]
        blocks = {f"{prefix}.experts.{expert}": width for expert in range(experts)}
        blocks[f"{prefix}.shared_experts"] = width * config["n_shared_experts"]
    for name, width in blocks.items():
        yield from ((f"{name}.{part}_proj.weight", (width, hidden)) for part in ("gate", "up"))
        yield f"{name}.down_proj.weight", (hidden, width)


def _llama(config: dict[str, Any]) -> Iterator[Tensor]:
    """Names and shapes of Llama, Mistral and Mixtral."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    keys = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    yield "model.embed_tokens.weight", (vocab, hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        for part, rows in (("q", hidden), ("k", keys), ("v", keys)):
            yield f"{prefix}.self_attn.{part}_proj.weight", (rows, hidden)
        yield f"{prefix}.self_attn.o_proj.weight", (hidden, hidden)
        if experts := config.get("num_local_experts"):
            yield f"{prefix}.block_sparse_moe.gate.weight", (experts, hidden)
            for expert in range(experts):
                for part, shape in (("w1", (inner, hidden)), ("w2", (hidden, inner)), ("w3", (inner, hidden))):
                    yield f"{prefix}.block_sparse_moe.experts.{expert}.{part}.weight", shape
        else:
            for part, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
                yield f"{prefix}.mlp.{part}_proj.weight", shape
        yield f"{prefix}.input_layernorm.weight", (hidden,)
        yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (vocab, hidden)


def _gpt2(config: dict[str, Any]) -> Iterator[Tensor]:
    hidden = config["n_embd"]
    yield "transformer.wte.weight", (config["vocab_size"], hidden)
    yield "transformer.wpe.weight", (config["n_positions"], hidden)
    for layer in range(config["n_layer"]):
        prefix = f"transformer.h.{layer}"
        for part, columns, rows in (
            ("attn.c_attn", hidden, 3 * hidden),
            ("attn.c_proj", hidden, hidden),
            ("mlp.c_fc", hidden, 4 * hidden),
            ("mlp.c_proj", 4 * hidden, hidden),
        ):
            yield f"{prefix}.{part}.weight", (columns, rows)
            yield f"{prefix}.{part}.bias", (rows,)
        for norm in ("ln_1", "ln_2"):
            yield f"{prefix}.{norm}.weight", (hidden,)
            yield f"{prefix}.{norm}.bias", (hidden,)
    yield "transformer.ln_f.weight", (hidden,)
    yield "transformer.ln_f.bias", (hidden,)


def from_header(name: str) -> ModelFacts:
    """A GGUF checkpoint whose header is kept in `headers/`."""
    data = json.loads((DATA / "headers" / f"{name}.json").read_text())
    rows = data.pop("tensors")
    tensors = tuple(
        _tensor(tensor, stored, tuple(shape), storage, f"{name}.gguf", 0, size)
        for tensor, stored, shape, storage, size in rows
    )
    return ModelFacts(
        root=f"/models/{name}.gguf",
        format="gguf",
        geometry=derive_geometry(normalize_config(data["config"])),
        tokenizer=_tokenizer("gguf"),
        tensors=tensors,
        stored=StoredConventions(**data.pop("stored")),
        quantization="gguf",
        **data,
    )


def write_header(name: str, file: Path) -> None:
    """Keeps the header of a GGUF file, one line a tensor."""
    facts = read_model_facts(file)
    head = {
        "architecture": facts.architecture,
        "header_sha256": facts.header_sha256,
        "generation_config": facts.generation_config,
        "stored": msgspec.to_builtins(facts.stored),
        "config": facts.config,
    }
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    tensors = [[t.name, t.stored_name, t.shape, t.storage, t.size_bytes] for t in facts.tensors]
    rows = ",\n".join("    " + json.dumps(row) for row in tensors)
    text = "{\n" + "\n".join(lines) + '\n  "tensors": [\n' + rows + "\n  ]\n}\n"
    (DATA / "headers" / f"{name}.json").write_text(text)


def _tokenizer(kind: str) -> TokenizerFacts:
    return msgspec.convert(
        {"kind": kind, "chat_template": CHAT_TEMPLATE, "bos_token_id": 1, "eos_token_ids": [2], "add_bos": False},
        TokenizerFacts,
    )


def _tensor(
    name: str, stored: str, shape: tuple[int, ...], storage: str, file: str, offset: int, size: int
) -> TensorFacts:
    fields = {"name": name, "stored_name": stored, "shape": shape, "storage": storage, "file": file}
    return msgspec.convert({**fields, "offset_bytes": offset, "size_bytes": size}, TensorFacts)
