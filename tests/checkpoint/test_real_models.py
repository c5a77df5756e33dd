"""The real files, where APPLIANCE_TEST_MODELS names the folder that holds them."""

import os
from pathlib import Path

import pytest

from appliance.checkpoint import normalize_config, read_model_facts
from appliance.checkpoint.reader import open_tensors

FOLDER = os.environ.get("APPLIANCE_TEST_MODELS")
pytestmark = pytest.mark.skipif(FOLDER is None, reason="APPLIANCE_TEST_MODELS is not set")


def real(name: str) -> Path:
    path = Path(FOLDER or "") / name
    if not path.is_file():
        pytest.skip(f"{name} is not in the folder")
    return path


def test_qwen() -> None:
    facts = read_model_facts(real("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"))
    geometry = facts.geometry
    assert (facts.architecture, len(facts.tensors), facts.quantization) == ("Qwen2ForCausalLM", 291, "gguf")
    assert (geometry.num_layers, geometry.hidden_size, geometry.num_heads, geometry.num_kv_heads) == (24, 896, 14, 2)
    assert geometry.vocab_size == 151_936
    assert facts.tokenizer.eos_token_ids == (151_645, 151_643)
    assert facts.tokenizer.chat_template is not None
    counts = {storage: sum(t.storage == storage for t in facts.tensors) for storage in ("q5_0", "q8_0", "q6_k", "q4_k")}
    assert counts == {"q5_0": 133, "q8_0": 13, "q6_k": 12, "q4_k": 12}


def test_gemma() -> None:
    facts = read_model_facts(real("gemma-3-270m-q4_k_m.gguf"))
    config = normalize_config(facts.config)
    assert facts.architecture == "Gemma3ForCausalLM"
    assert [i for i, layer in enumerate(config.layers) if layer.window is None] == [5, 11, 17]
    assert {layer.rope.theta for layer in config.layers if layer.window == 512 and layer.rope} == {10_000.0}
    assert (config.attention_scale, facts.geometry.tie_embeddings) == (256.0**-0.5, True)
    with open_tensors(facts) as reader:
        norms = reader.array("model.layers.0.input_layernorm.weight")
        assert facts.stored.norm_includes_one
        assert norms.shape == (640,)
