"""GGUF adapters against peft's logits, and adapters of experts, one by one or as stacks, against merged weights."""

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from appliance.base.errors import ApplianceError
from appliance.checkpoint.adapter import read_adapter
from appliance.kernels.binding import load_kernel_set
from appliance.kernels.interface import StepAdapters
from tests.models.adapters import make_adapter
from tests.models.gguf_adapters import gguf_adapter, write_adapter
from tests.models.peft_adapters import peft_adapter
from tests.parity.conftest import Checkpoint
from tests.parity.test_adapters import PROMPTS, TOLERANCE, logits_of
from tests.parity.test_peft import adapted

EVERY = "all-linear"
BOTH = ["lm_head", "embed_tokens", "q_proj"]
# The tiny model, the architecture of the file, and the targets: rows for interleaved rotation, none, fused, Conv1D.
FILES = {
    "llama": ("llama", "llama", EVERY),
    "qwen2": ("qwen2", "qwen2", EVERY),
    "phi3": ("phi3", "phi3", EVERY),
    "gpt2": ("gpt2", "gpt2", ["c_attn", "c_fc", "c_proj"]),
    "gemma2": ("gemma2", "gemma2", ["embed_tokens", "q_proj", "down_proj"]),
    "head and embedding": ("llama", "llama", BOTH),
}


def check(checkpoint: Checkpoint, path: Path, model: torch.nn.Module) -> None:
    """The adapter at `path` gives the logits of `model`."""
    driver = adapted(checkpoint, load_kernel_set("cpu-avx2"), path)
    driver.adapters = StepAdapters(np.array([1], np.int32), np.ones(1, np.float32))
    row = driver.sequence(PROMPTS[0])
    expected = logits_of(model, PROMPTS[0])[-1]
    assert np.abs(expected - logits_of(checkpoint.oracle, PROMPTS[0])[-1]).max() > 0.03
    np.testing.assert_allclose(driver.step([(row, len(row.token_ids))])[0], expected, **TOLERANCE)


@pytest.mark.parametrize("case", FILES)
def test_a_gguf_adapter_gives_what_peft_gives(case: str, tiny: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    name, architecture, targets = FILES[case]
    checkpoint, path = tiny(name), tmp_path / "file" / "adapter.gguf"
    model = peft_adapter(checkpoint.oracle, tmp_path, target_modules=targets, fan_in_fan_out=name == "gpt2")
    path.parent.mkdir()
    gguf_adapter(tmp_path, checkpoint.oracle.config, architecture, path)
    check(checkpoint, path, model)
    assert read_adapter(path.parent).sha256 == read_adapter(path).sha256  # a folder that has nothing else


def merged_experts(checkpoint: Checkpoint, down: torch.Tensor, up: torch.Tensor, scale: float) -> torch.nn.Module:
    """A copy of the model with products [E, r, in] and [E, out, r] in the down matrices of the experts of layer 0."""
    model = copy.deepcopy(checkpoint.oracle)
    with torch.no_grad():
        model.get_submodule("model.layers.0.mlp.experts").down_proj += scale * up @ down
    return model


def products(checkpoint: Checkpoint) -> tuple[torch.Tensor, torch.Tensor]:
    experts, out, width = checkpoint.oracle.get_submodule("model.layers.0.mlp.experts").down_proj.shape
    generator = torch.Generator().manual_seed(4)
    return tuple(torch.randn(experts, *size, generator=generator) for size in ((4, width), (out, 4)))


def test_stacks_of_experts_in_a_gguf_adapter(tiny: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    checkpoint, path = tiny("mixtral"), tmp_path / "adapter.gguf"
    down, up = products(checkpoint)
    name = "blk.0.ffn_down_exps.weight"
    write_adapter(path, "llama", 6, {f"{name}.lora_a": down.numpy(), f"{name}.lora_b": up.numpy()})
    check(checkpoint, path, merged_experts(checkpoint, down, up, 6 / 4))


def test_experts_one_by_one(tiny: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    """As peft saved them while transformers had a module for each."""
    checkpoint = tiny("mixtral")
    make_adapter(checkpoint.oracle, tmp_path, targets=lambda name: "0.self_attn.q_proj" in name, lora_alpha=6)
    down, up = products(checkpoint)
    stem = "base_model.model.model.layers.0.block_sparse_moe.experts"
    pairs = {
        f"{stem}.{expert}.w2.lora_{end}.weight": each[expert].contiguous()
        for end, each in (("A", down), ("B", up))
        for expert in range(len(down))
    }
    save_file(pairs, tmp_path / "adapter_model.safetensors")
    check(checkpoint, tmp_path, merged_experts(checkpoint, down, up, 6 / 4))


def test_an_adapter_in_a_file_of_torch(tiny: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    checkpoint = tiny("llama")
    model = peft_adapter(checkpoint.oracle, tmp_path, target_modules=EVERY)
    path = tmp_path / "adapter_model.safetensors"
    torch.save(load_file(path), tmp_path / "adapter_model.bin")
    path.unlink()
    check(checkpoint, tmp_path, model)


PAIR = {"blk.0.attn_q.weight.lora_a": np.ones((4, 64)), "blk.0.attn_q.weight.lora_b": np.ones((64, 4))}
BAD = {
    "a model": (PAIR, {"general__type": "model"}, "general.type is 'model'"),
    "activated": (PAIR, {"adapter__alora__invocation_tokens": [1, 2]}, "invocation_tokens is set"),
    "half a pair": (dict([*PAIR.items()][:1]), {}, "has .lora_a alone"),
    "a norm": ({"blk.0.attn_norm.weight": np.ones(64)}, {}, "blk.0.attn_norm.weight' is no lora_a or lora_b"),
    "a name": ({f"x.{key}": each for key, each in PAIR.items()}, {}, "is no matrix that llama has"),
    "no product": (PAIR | {"blk.0.attn_q.weight.lora_b": np.ones((64, 3))}, {}, "is no product"),
    "nothing": ({}, {}, "there is no tensor of an adapter"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_gguf_adapter_is_refused(name: str, tmp_path: Path) -> None:
    tensors, entries, problem = BAD[name]
    write_adapter(tmp_path / "adapter.gguf", "llama", 6, tensors, **entries)
    with pytest.raises(ApplianceError, match=problem):
        read_adapter(tmp_path)


def test_architectures_with_rows_in_an_order_of_their_own_are_refused(tmp_path: Path) -> None:
    write_adapter(tmp_path / "adapter.gguf", "falcon", 6, PAIR)
    with pytest.raises(ApplianceError, match="adapters of falcon in GGUF"):
        read_adapter(tmp_path)
