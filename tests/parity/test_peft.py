"""Adapters that peft made, in every form that it saves: our logits are peft's, and rows beside them are the model's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.checkpoint.adapter import read_adapter
from appliance.kernels.binding import load_kernel_set
from appliance.kernels.interface import Adapters, KernelSet, StepAdapters
from appliance.layers.adapters import Wanted, with_adapters
from appliance.loading.adapters import load_adapter
from appliance.loading.base_weights import BaseWeights
from appliance.models.adapter_places import AdapterPlaces
from appliance.models.adapters import kinds_needed, place_filter, trained_weights, whole_weights
from tests.models.peft_adapters import peft_adapter
from tests.parity.conftest import Checkpoint
from tests.parity.harness import Driver, bind_adapted
from tests.parity.test_adapters import MAX_RANK, PROMPTS, TOLERANCE, bounds, logits_of

BY_TORCH = ("reference", "torch")  # their products round by the number of rows
ATTENTION = ["q_proj", "v_proj"]
BOTH = ["lm_head", "embed_tokens"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
# By what is shown: the tiny model, and what peft is asked for.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"target_modules": "all-linear"}),
    "qwen2": ("qwen2", {"target_modules": "all-linear"}),
    "Conv1D": ("gpt2", {"target_modules": ["c_attn", "c_fc", "c_proj"], "fan_in_fan_out": True}),
    "fused": ("phi3", {"target_modules": "all-linear"}),
    "gemma2": ("gemma2", {"target_modules": "all-linear"}),
    "hybrid": ("qwen3_5", {"target_modules": "all-linear"}),
    "convolutions": ("lfm2", {"target_modules": "all-linear"}),
    "regex": ("llama", {"target_modules": r".*\.1\..*\.(q|v|down)_proj"}),
    "layers": ("llama", {"target_modules": ATTENTION, "layers_to_transform": [1], "layers_pattern": "layers"}),
    "excluded": ("llama", {"target_modules": "all-linear", "exclude_modules": ["k_proj"]}),
    "patterns": (
        "llama",
        {
            "target_modules": "all-linear",
            "rank_pattern": {"q_proj": 2, r"layers\.1\..*down_proj": 7},
            "alpha_pattern": {"up_proj": 3, "q_proj": 1},
        },
    ),
    "rsLoRA": ("llama", {"target_modules": ATTENTION, "use_rslora": True, "rank_pattern": {"q_proj": 2}}),
    "bias of LoRA": ("qwen2", {"target_modules": ATTENTION, "bias": "lora_only"}),
    "all biases": ("qwen2", {"target_modules": ["q_proj"], "bias": "all"}),
    "a bias of lora_B": ("qwen2", {"target_modules": ATTENTION, "lora_bias": True}),
    "DoRA": ("llama", {"target_modules": "all-linear", "use_dora": True}),
    "DoRA beside biases": ("qwen2", {"target_modules": "all-linear", "use_dora": True, "bias": "lora_only"}),
    "DoRA of Conv1D": ("gpt2", {"target_modules": ["c_attn", "c_proj"], "use_dora": True, "fan_in_fan_out": True}),
    "DoRA of fused": ("phi3", {"target_modules": "all-linear", "use_dora": True}),
    "DoRA of the head": ("llama", {"target_modules": ["lm_head", "q_proj"], "use_dora": True}),
    "head and embedding": ("llama", {"target_modules": [*BOTH, "q_proj"]}),
    "tied head and embedding": ("gemma2", {"target_modules": [*BOTH, "q_proj"]}),
    "own head and embedding": ("llama", {"target_modules": ["q_proj"], "modules_to_save": BOTH}),
    "own head, tied": ("gemma2", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
    "own embedding, tied": ("gemma2", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}),
    "own embedding, kept tied": (
        "gemma2",
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    ),
    "stacks of experts": ("mixtral", {"target_modules": ATTENTION, "target_parameters": EXPERTS}),
    "one stack of experts": ("qwen2_moe", {"target_modules": ATTENTION, "target_parameters": EXPERTS[1:]}),
    "experts and routers": ("mixtral", {"target_modules": "all-linear"}),
    "experts in turns": ("gpt-oss", {"target_modules": ATTENTION, "target_parameters": EXPERTS}),
}


def adapted(checkpoint: Checkpoint, kernel_set: KernelSet, folder: Path) -> Driver:
    """The model with the places that an adapter needs, and the adapter in slot 1."""
    facts, limits = read_adapter(folder), bounds()
    sources = trained_weights(checkpoint.facts, 64)
    kinds = kinds_needed(sources, [module.name for module in facts.modules])
    owned = [module.name for module in facts.modules if module.whole is not None]
    wanted = Wanted(MAX_RANK, place_filter(sources, None, kinds), whole_weights(sources, owned))
    executable, program = bind_adapted(
        checkpoint.facts, kernel_set, lambda one: with_adapters(one, wanted), execution=limits
    )
    assert program is not None
    assert isinstance(executable, Adapters)
    places = AdapterPlaces.of(checkpoint.facts, 64, program, BaseWeights(checkpoint.facts, 64))
    executable.put_adapter(1, load_adapter(facts, places, "f32"))
    return Driver(executable, limits)


def check(case: str, tiny: Callable[[str], Checkpoint], kernel_set: KernelSet, folder: Path) -> None:
    name, config = CASES[case]
    checkpoint = tiny(name)
    model = peft_adapter(checkpoint.oracle, folder, **config)
    driver = adapted(checkpoint, kernel_set, folder)
    plain = driver.all_logits(PROMPTS[1])
    driver.adapters = StepAdapters(np.array([1, -1, 1, -1], np.int32), np.ones(4, np.float32))
    rows = [driver.sequence(prompt) for prompt in PROMPTS]
    got = driver.step([(row, len(row.token_ids)) for row in rows])
    for at in (0, 2):
        expected = logits_of(model, PROMPTS[at])[-1]
        assert np.abs(expected - logits_of(checkpoint.oracle, PROMPTS[at])[-1]).max() > 0.03
        np.testing.assert_allclose(got[at], expected, **TOLERANCE)
    if kernel_set.name in BY_TORCH:
        np.testing.assert_allclose(got[1], plain[-1], **TOLERANCE)
        return
    np.testing.assert_array_equal(got[1], plain[-1])
    driver.adapters = StepAdapters(np.array([1], np.int32), np.ones(1, np.float32))
    alone = driver.sequence(PROMPTS[0])
    np.testing.assert_array_equal(driver.step([(alone, len(alone.token_ids))])[0], got[0])


@pytest.mark.many_cases
@pytest.mark.parametrize("case", CASES)
def test_an_adapter_gives_what_peft_gives(
    case: str, tiny: Callable[[str], Checkpoint], kernel_set: KernelSet, tmp_path: Path
) -> None:
    check(case, tiny, kernel_set, tmp_path)


@pytest.mark.parametrize(
    "case", ["fused", "DoRA beside biases", "tied head and embedding", "own head and embedding", "experts in turns"]
)
def test_the_executor_on_torch_gives_what_peft_gives(
    case: str, tiny: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    check(case, tiny, load_kernel_set("torch"), tmp_path)
