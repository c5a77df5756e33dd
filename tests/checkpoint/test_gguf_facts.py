from pathlib import Path

import gguf
import numpy as np
import pytest

from appliance.checkpoint import CheckpointError, normalize_config, read_model_facts
from appliance.checkpoint.gguf_facts import BEGINNING_WITH_BOS
from appliance.checkpoint.reader import open_tensors
from appliance.text.pre_tokenizers import SPLITTINGS

from .files import LLAMA, llama_tensors, write_gguf

TOKENS = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["a", "b", "<|im_end|>", "<|endoftext|>", "<end_of_turn>"],
    "tokenizer.ggml.token_type": [1, 1, 3, 3, 1],
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.bos_token_id": 3,
    "tokenizer.chat_template": "{{ messages }}",
}


def renamed(metadata: dict[str, object], architecture: str, **changes: object) -> dict[str, object]:
    values = {key.replace("llama.", f"{architecture}.", 1): value for key, value in metadata.items()}
    return values | {f"{architecture}.{key.replace('__', '.')}": value for key, value in changes.items()}


def test_llama(tmp_path: Path) -> None:
    facts = read_model_facts(write_gguf(tmp_path / "m.gguf", metadata=LLAMA | TOKENS))
    assert (facts.architecture, facts.format, facts.quantization) == ("LlamaForCausalLM", "gguf", None)
    assert facts.stored.interleaved_heads
    assert not facts.stored.norm_includes_one
    config = normalize_config(facts.config)
    assert (config.num_layers, config.hidden_size, config.head_dim, config.num_kv_heads) == (2, 64, 16, 2)
    assert config.layers[0].rope is not None
    assert (config.layers[0].rope.theta, config.layers[0].rope.kind) == (500000.0, "default")
    assert config.norm_eps == pytest.approx(1e-5)
    assert not config.tie_embeddings
    assert facts.geometry.vocab_size == 32
    names = {tensor.name: tensor for tensor in facts.tensors}
    assert names["model.layers.1.mlp.down_proj.weight"].stored_name == "blk.1.ffn_down.weight"
    assert names["model.layers.1.mlp.down_proj.weight"].shape == (64, 96)
    assert facts.size_bytes == sum(array.nbytes for array in llama_tensors().values())


def test_end_tokens_are_the_stated_one_and_control_tokens_known_by_text(tmp_path: Path) -> None:
    tokenizer = read_model_facts(write_gguf(tmp_path / "m.gguf", metadata=LLAMA | TOKENS)).tokenizer
    assert tokenizer.eos_token_ids == (2, 3)  # "<end_of_turn>" is an ordinary token here
    assert (tokenizer.kind, tokenizer.bos_token_id, tokenizer.chat_template) == ("gguf", 3, "{{ messages }}")
    assert not tokenizer.add_bos


def test_ids_outside_the_vocabulary_are_left_out_by_name(tmp_path: Path) -> None:
    wrong = {"tokenizer.ggml.eos_token_id": 32, "tokenizer.ggml.bos_token_id": 99, "tokenizer.ggml.eot_token_id": 4}
    tokenizer = read_model_facts(write_gguf(tmp_path / "m.gguf", metadata=LLAMA | TOKENS | wrong)).tokenizer
    assert (tokenizer.eos_token_ids, tokenizer.bos_token_id) == ((4, 2, 3), None)
    assert [(each.file, each.field, each.value) for each in tokenizer.left_out] == [
        ("m.gguf", "tokenizer.ggml.bos_token_id", "99"),
        ("m.gguf", "tokenizer.ggml.eos_token_id", "32"),
    ]


def test_sampling_that_the_file_recommends_is_passed_on_as_it_stands(tmp_path: Path) -> None:
    """The planner judges it."""
    stated = {"general.sampling.temp": "0.7", "general.sampling.top_k": 40}
    facts = read_model_facts(write_gguf(tmp_path / "m.gguf", metadata=LLAMA | TOKENS | stated))
    assert facts.generation_config == {"temperature": "0.7", "top_k": 40}


def test_names_that_begin_with_bos_are_those_of_the_tokenizer() -> None:
    assert {name for name, each in SPLITTINGS.items() if each.begins_with_bos} == set(BEGINNING_WITH_BOS)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"tokenizer.ggml.model": "llama"}, True),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "llama-bpe"}, True),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2"}, False),
        ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.add_bos_token": False}, False),
    ],
)
def test_bos_is_added_by_llama_cpps_rule(tmp_path: Path, metadata: dict[str, object], expected: bool) -> None:
    assert read_model_facts(write_gguf(tmp_path / "m.gguf", metadata=LLAMA | metadata)).tokenizer.add_bos is expected


def test_tied_embeddings_are_those_without_an_output_tensor(tmp_path: Path) -> None:
    tensors = llama_tensors()
    del tensors["output.weight"]
    facts = read_model_facts(write_gguf(tmp_path / "m.gguf", tensors=tensors))
    assert facts.geometry.tie_embeddings


def test_llama3_rotary_divisors_become_longrope(tmp_path: Path) -> None:
    divisors = np.linspace(1, 8, 8, dtype=np.float32)
    facts = read_model_facts(write_gguf(tmp_path / "m.gguf", tensors=llama_tensors() | {"rope_freqs.weight": divisors}))
    rope = normalize_config(facts.config).layers[0].rope
    assert rope is not None
    assert rope.kind == "longrope"
    assert rope.parameters["short_factor"] == rope.parameters["long_factor"] == divisors.tolist()
    assert rope.parameters["attention_factor"] == 1.0
    assert facts.geometry.max_position == 4096
    assert all("rope" not in tensor.name for tensor in facts.tensors)


def test_qwen2_has_biases_and_no_window(tmp_path: Path) -> None:
    tensors = llama_tensors() | {f"blk.{n}.attn_{x}.bias": np.zeros(32, np.float32) for n in range(2) for x in "kv"}
    tensors |= {f"blk.{n}.attn_q.bias": np.zeros(64, np.float32) for n in range(2)}
    path = write_gguf(tmp_path / "m.gguf", "qwen2", renamed(LLAMA, "qwen2"), tensors)
    facts = read_model_facts(path)
    config = normalize_config(facts.config)
    assert facts.architecture == "Qwen2ForCausalLM"
    assert (config.attention_bias, config.attention_out_bias) == (True, False)
    assert config.layers[0].window is None
    assert not facts.stored.interleaved_heads


def test_gemma2_alternates_windows_and_caps(tmp_path: Path) -> None:
    changes = {"attention__sliding_window": 128, "attention__key_length": 32, "attn_logit_softcapping": 50.0}
    metadata = renamed(LLAMA, "gemma2", **changes, final_logit_softcapping=30.0)
    del metadata["gemma2.rope.dimension_count"]
    tensors = llama_tensors()
    tensors |= {
        f"blk.{n}.{norm}.weight": np.ones(64, np.float32)
        for n in range(2)
        for norm in ("post_attention_norm", "post_ffw_norm")
    }
    facts = read_model_facts(write_gguf(tmp_path / "m.gguf", "gemma2", metadata, tensors))
    config = normalize_config(facts.config)
    assert [layer.window for layer in config.layers] == [128, None]
    assert (config.attn_soft_cap, config.final_soft_cap, config.attention_scale) == (50.0, 30.0, 32.0**-0.5)
    assert facts.stored.norm_includes_one
    assert config.activation == "gelu_pytorch_tanh"
    names = {tensor.stored_name: tensor.name for tensor in facts.tensors}
    assert names["blk.0.ffn_norm.weight"] == "model.layers.0.pre_feedforward_layernorm.weight"
    assert names["blk.0.post_attention_norm.weight"] == "model.layers.0.post_attention_layernorm.weight"


def test_gemma3_has_two_rotary_bases_and_every_sixth_layer_full(tmp_path: Path) -> None:
    metadata = renamed(LLAMA, "gemma3", block_count=7, attention__sliding_window=512, rope__freq_base=1e6)
    metadata["gemma3.attention.key_length"] = 16
    facts = read_model_facts(write_gguf(tmp_path / "m.gguf", "gemma3", metadata, llama_tensors(layers=7)))
    config = normalize_config(facts.config)
    assert [layer.window for layer in config.layers] == [512] * 5 + [None, 512]
    assert [layer.rope.theta for layer in config.layers if layer.rope] == [1e4] * 5 + [1e6, 1e4]
    groups = facts.geometry.groups
    assert [(group.window, group.layers) for group in groups] == [(512, (0, 1, 2, 3, 4, 6)), (None, (5,))]


def test_phi3_keeps_its_fused_tensors_and_long_factors(tmp_path: Path) -> None:
    metadata = renamed(LLAMA, "phi3", context_length=8192, rope__scaling__original_context_length=2048)
    metadata["phi3.rope.scaling.attn_factor"] = 1.25
    tensors = {
        "token_embd.weight": np.zeros((32, 64), np.float32),
        "output_norm.weight": np.zeros(64, np.float32),
        "output.weight": np.zeros((32, 64), np.float32),
        "blk.0.attn_qkv.weight": np.zeros((128, 64), np.float32),
        "blk.0.ffn_up.weight": np.zeros((192, 64), np.float32),
        "rope_factors_long.weight": np.full(8, 4, np.float32),
        "rope_factors_short.weight": np.ones(8, np.float32),
    }
    facts = read_model_facts(write_gguf(tmp_path / "m.gguf", "phi3", metadata, tensors))
    rope = normalize_config(facts.config).layers[0].rope
    assert rope is not None
    assert (rope.kind, rope.parameters["long_factor"], rope.parameters["attention_factor"]) == (
        "longrope",
        [4.0] * 8,
        1.25,
    )
    assert rope.parameters["original_max_position_embeddings"] == 2048
    assert {tensor.name for tensor in facts.tensors} >= {
        "model.layers.0.self_attn.qkv_proj.weight",
        "model.layers.0.mlp.gate_up_proj.weight",
    }


def test_gpt2(tmp_path: Path) -> None:
    metadata = {
        "gpt2.block_count": 1, "gpt2.context_length": 128, "gpt2.embedding_length": 64,
        "gpt2.feed_forward_length": 256, "gpt2.attention.head_count": 4, "gpt2.attention.layer_norm_epsilon": 1e-5,
    }  # fmt: skip
    tensors = {
        "token_embd.weight": np.zeros((32, 64), np.float32),
        "position_embd.weight": np.zeros((128, 64), np.float32),
        "blk.0.attn_qkv.weight": np.zeros((192, 64), np.float32),
        "blk.0.attn_qkv.bias": np.zeros(192, np.float32),
    }
    facts = read_model_facts(write_gguf(tmp_path / "m.gguf", "gpt2", metadata, tensors))
    config = normalize_config(facts.config)
    assert facts.architecture == "GPT2LMHeadModel"
    assert (config.activation, config.max_position, config.intermediate_size) == ("gelu_new", 128, 256)
    assert config.layers[0].rope is None
    assert not facts.stored.linear_is_transposed
    assert facts.tensors[-1].name == "transformer.h.0.attn.c_attn.bias"


def test_block_types_make_it_quantized(tmp_path: Path) -> None:
    tensors = llama_tensors()
    up = tensors.pop("blk.0.ffn_up.weight")
    quantized = {"blk.0.ffn_up.weight": (up, gguf.GGMLQuantizationType.Q8_0)}
    facts = read_model_facts(write_gguf(tmp_path / "m.gguf", tensors=tensors, quantized=quantized))
    assert facts.quantization == "gguf"
    with open_tensors(facts) as reader:
        assert reader.read("model.layers.0.mlp.up_proj.weight").nbytes == 96 * 2 * 34
        with pytest.raises(CheckpointError, match="stored as q8_0"):
            reader.array("model.layers.0.mlp.up_proj.weight")


@pytest.mark.parametrize(
    ("architecture", "change", "tensors", "words"),
    [
        ("rwkv6", {}, {}, "'rwkv6' is not in this version"),
        ("qwen2", {"qwen2.expert_count": 8}, {}, "expert_count = 8 is not in this version"),
        ("llama", {"llama.attention.head_count_kv": [2, 1]}, {}, "differs between layers"),
        ("clip", {}, {}, "is no model but the part of one that reads images or sound"),
        ("llama", {"general.type": "adapter"}, {}, "is an adapter, and no model"),
        ("llama", {"llama.pooling_type": 7}, {}, "pooling_type is 7"),
        ("bert", {}, {"cls.output.weight": np.zeros((2, 64), np.float32)}, "classifiers of BERT and DistilBERT"),
        ("llama", {}, {"blk.0.mystery.weight": np.zeros(4, np.float32)}, "blk.0.mystery.weight"),
        ("llama", {"llama.block_count": 0}, {}, "num_hidden_layers is 0"),
        ("llama", {"llama.block_count": "two"}, {}, "llama.block_count is 'two'"),
    ],
)
def test_what_is_not_understood_is_refused(
    tmp_path: Path, architecture: str, change: dict[str, object], tensors: dict[str, np.ndarray], words: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", architecture, LLAMA | change, llama_tensors() | tensors)
    with pytest.raises(CheckpointError, match=words):
        read_model_facts(path)


def test_split_sets_are_read_as_one(tmp_path: Path) -> None:
    tensors = llama_tensors()
    names = list(tensors)
    for number, part in enumerate((names[:5], names[5:])):
        metadata = {"split.no": number, "split.count": 2} | (LLAMA if number == 0 else {})
        path = tmp_path / f"m-0000{number + 1}-of-00002.gguf"
        write_gguf(path, metadata=metadata, tensors={name: tensors[name] for name in part})
    facts = read_model_facts(tmp_path)  # the folder holds one model
    assert len(facts.tensors) == len(tensors)
    with open_tensors(facts) as reader:
        assert np.array_equal(reader.array("model.layers.1.mlp.up_proj.weight"), tensors["blk.1.ffn_up.weight"])
    with pytest.raises(CheckpointError, match="not the first file"):
        read_model_facts(tmp_path / "m-00002-of-00002.gguf")


def test_the_header_digest_changes_with_the_header_only(tmp_path: Path) -> None:
    first = read_model_facts(write_gguf(tmp_path / "a.gguf"))
    same = read_model_facts(write_gguf(tmp_path / "b.gguf", tensors={k: v + 1 for k, v in llama_tensors().items()}))
    other = read_model_facts(write_gguf(tmp_path / "c.gguf", metadata=LLAMA | {"llama.context_length": 2048}))
    assert first.header_sha256 == same.header_sha256 != other.header_sha256
