"""Tiny checkpoints, each made once a session."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
import transformers

from appliance.catalog.kernel_sets import KERNEL_SETS
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.read import read_model_facts
from appliance.kernels.binding import built_kernel_sets, load_kernel_set
from appliance.kernels.errors import KernelSetError
from appliance.kernels.interface import KernelSet
from tests.models.gguf_files import GgufFile, KindOf, architecture_of, write_gguf
from tests.models.tiny import FAMILIES, VARIANTS, make_tiny


class Write(Protocol):
    def __call__(self, name: str, label: str, kind_of: KindOf, architecture: str | None = None) -> GgufFile: ...


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from more, and lose much on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def kernel_set_names() -> list[str]:
    """The oracle, and every native set that is built here and that this processor runs."""
    runnable = []
    for name in built_kernel_sets():
        try:
            load_kernel_set(name)
        except KernelSetError:
            continue
        runnable.append(name)
    return runnable


@dataclass(frozen=True)
class Checkpoint:
    folder: Path
    facts: ModelFacts
    oracle: torch.nn.Module

    def logits(self, token_ids: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            return self.oracle(torch.tensor([token_ids])).logits[0].float()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    made: dict[str, Checkpoint] = {}

    def get(name: str) -> Checkpoint:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            oracle = make_tiny(name, folder)
            made[name] = Checkpoint(folder, read_model_facts(folder), oracle)
        return made[name]

    return get


@pytest.fixture(scope="session", params=kernel_set_names())
def kernel_set(request: pytest.FixtureRequest) -> KernelSet:
    return load_kernel_set(request.param)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Write:
    made: dict[tuple[str, str, str | None], GgufFile] = {}

    def write(name: str, label: str, kind_of: KindOf, architecture: str | None = None) -> GgufFile:
        """architecture: of a file of another family that computes the same."""
        key = (name, label, architecture)
        if key not in made:
            path = tmp_path_factory.mktemp("gguf") / f"{name}-{label}.gguf"
            made[key] = write_gguf(wide_config(name), architecture or architecture_of(name), path, kind_of)
        return made[key]

    return write


# What files leave to llama.cpp's constants, or cannot say.
_LATENT: dict[str, dict[str, Any]] = {
    "deepseek2-groups": {"attention_bias": False},
    "deepseek3": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "mscale": 1.3,
            "mscale_all_dim": 1.3,
        }
    },
    "minicpm3": {"v_head_dim": 64, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
}
_NEMOTRON_H: dict[str, Any] = {"mamba_head_dim": 16, "moe_shared_expert_intermediate_size": 64}
_OF_HYBRIDS: dict[str, dict[str, Any]] = {
    "mamba2": {"head_dim": 64},
    "granitemoehybrid": {"shared_intermediate_size": 96},
    "nemotron_h": {"layers_block_type": ["linear_attention", "moe", "full_attention"], **_NEMOTRON_H},
    "nemotron_h-dense": _NEMOTRON_H,
    "nemotron_h-latent": _NEMOTRON_H,
    "qwen3_next": {"mlp_only_layers": [], "linear_value_head_dim": 16, "shared_expert_intermediate_size": 64},
    "qwen3_5": {"linear_value_head_dim": 16},
    "qwen3_5_moe": {"linear_value_head_dim": 16, "shared_expert_intermediate_size": 64},
    "falcon_h1": {"head_dim": 64},
}
_LLAMA4: dict[str, Any] = {
    "attention_chunk_size": 8192, "no_rope_layer_interval": 4, "floor_scale": 8192, "attn_scale": 0.1,
}  # fmt: skip


def wide_config(name: str) -> transformers.PretrainedConfig:
    """Columns in whole super-blocks of 256."""
    tiny = (FAMILIES | VARIANTS)[name]
    wide: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 256}
    if name == "gpt2":
        wide = {"n_embd": 256}
    elif name.startswith(("gemma3n", "gemma4")):
        wide |= {"head_dim": 64, "global_head_dim": 128, "vocab_size_per_layer_input": 256, "laurel_rank": 64}
        wide |= {"moe_intermediate_size": 256} if name == "gemma4-experts" else {}
    elif name.startswith("gemma"):
        wide |= {"head_dim": 64, "query_pre_attn_scalar": 64, "num_hidden_layers": 2, "sliding_window_pattern": 6}
    elif name == "gpt-oss":
        wide |= {"swiglu_limit": 7.0}  # llama.cpp's own
    elif name == "phi3":
        wide |= {"num_attention_heads": 16}  # heads as small as its four rotary factors
    elif name in _OF_HYBRIDS:
        wide |= _OF_HYBRIDS[name]
    elif name.startswith("mpt"):
        wide = {"d_model": 256}
    elif name in ("deepseek2", "deepseek2-groups", "deepseek3", "glm4_moe_lite", "minicpm3"):
        wide |= {"moe_intermediate_size": 256, "qk_nope_head_dim": 32, **_LATENT.get(name, {})}
    elif name == "glm":
        wide |= {"head_dim": 64}
    elif name == "gpt_bigcode":
        wide = {"n_embd": 256}
    elif name == "phimoe":
        rope = {**tiny.values["rope_parameters"], "short_mscale": 1.2, "long_mscale": 1.2}
        wide |= {"num_attention_heads": 16, "router_jitter_noise": 0.01, "rope_parameters": rope}
    elif name == "mimo2":
        wide |= {"moe_intermediate_size": 256, "routed_scaling_factor": 1.0, "v_head_dim": 64}
    elif name == "kimi_linear":
        wide |= {"moe_intermediate_size": 256, "n_group": 1, "topk_group": 1, "linear_head_dim": 64, "v_head_dim": 64}
        wide |= {"qk_nope_head_dim": 32}
    elif name == "llama4":
        wide |= _LLAMA4
    elif name == "granite-plain":
        wide |= {"attention_multiplier": 0.125}  # of heads of 64
    elif name in ("qwen2_moe", "qwen3_moe", "dots1", "glm4_moe", "ernie4_5_moe", "lfm2_moe", "afmoe"):
        wide |= {"moe_intermediate_size": 256}
        wide |= {"sliding_window": None} if name == "dots1" else {}  # llama.cpp has no window for it
    elif name == "qwen3":
        wide |= {"head_dim": 64, "attention_bias": False}
    return replace(tiny, values={**tiny.values, **wide}).config()


@pytest.fixture(scope="session", params=[name for name in kernel_set_names() if KERNEL_SETS[name].can_share])
def sharing(request: pytest.FixtureRequest) -> KernelSet:
    """A set that several ranks can run."""
    return load_kernel_set(request.param)


@pytest.fixture(scope="session", params=[name for name in kernel_set_names() if KERNEL_SETS[name].spreads_experts])
def spreading(request: pytest.FixtureRequest) -> KernelSet:
    """A set of which replicas can have the experts of a model among them."""
    return load_kernel_set(request.param)
