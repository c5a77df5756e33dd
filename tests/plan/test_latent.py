"""Plans of latent attention: what a token keeps, and what its weights take."""

from typing import Any

import pytest

from appliance.base.errors import SpecError
from appliance.checkpoint.facts import ModelFacts
from appliance.plan.render import render_text

from .checkpoints import from_config
from .machines import load, machine, plan

# As published, but for the number of experts: thousands of tensors that say nothing of attention.
FEW_EXPERTS: dict[str, Any] = {"n_routed_experts": 16, "num_experts_per_tok": 4}
NUM_LAYERS, HEADS, LATENT, NOPE, ROPE = 61, 128, 512, 128, 64


def deepseek(**changes: Any) -> ModelFacts:
    return from_config("deepseek-v3", **(FEW_EXPERTS | changes))


@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 2), ("float32", 4)])
def test_a_token_keeps_one_latent_and_one_rotated_key_in_each_layer(dtype: str, size: int) -> None:
    text = f"model: {{source: ./model, max_model_len: 4096}}\ncache: {{dtype: {dtype}}}\n"
    found = plan(load(text), deepseek(), machine("server-epyc-9654"))
    memory = found.memory[0]
    assert memory.kv_bytes_per_token == (LATENT + ROPE) * NUM_LAYERS * size
    assert [(group.num_kv_heads, group.head_dim, group.value_dim) for group in memory.kv_groups] == [(1, 576, 0)]
    assert "61 layers x 1 heads x 576, full attention" in render_text(found)


def test_a_latent_in_8_bits_is_fp8_with_one_scale() -> None:
    text = "model: {source: ./model, max_model_len: 4096}\ncache: {dtype: %s}\n"
    found = plan(load(text % "fp8"), deepseek(), machine("server-epyc-9654"))
    assert found.memory[0].kv_bytes_per_token == (LATENT + ROPE + 4) * NUM_LAYERS
    with pytest.raises(SpecError, match="are columns of its keys") as caught:
        plan(load(text % "int8"), deepseek(), machine("server-epyc-9654"))
    assert [each.rule for each in caught.value.diagnostics] == ["plan/kv-dtype"]


def test_weights_are_those_of_the_checkpoint_and_the_turned_matrices_of_keys_in_f32() -> None:
    model = deepseek()
    found = plan(load("model: {source: ./model, max_model_len: 4096}\n"), model, machine("server-epyc-9654"))
    weights = next(item for item in found.memory[0].items if item.name == "weights")
    turned = NUM_LAYERS * HEADS * LATENT * NOPE
    exact = model.size_bytes + 2 * turned
    assert exact <= weights.size_bytes <= 1.001 * exact  # vectors and routers are f32 too
