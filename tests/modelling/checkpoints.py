"""Tiny checkpoints for modelling code that is not ours: of families that we lack, and one that brings its own code."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from appliance.checkpoint.read import read_model_facts
from appliance.kernels.model_source import ModelSource
from appliance.kernels.modelling.kernel_set import ModellingExecutable, ModellingKernelSet
from appliance.models.outline import outline
from appliance.plan.overrides import with_config_overrides
from tests.models.tiny import randomize
from tests.parity.harness import Driver, execution_of

SIZES: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
# Architectures without a family: windows and soft caps; multipliers; routed and shared experts; latent attention.
UNKNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "vaultgemma": (
        "VaultGemmaConfig",
        {"sliding_window": 8, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    ),
    "hyperclovax": ("HyperCLOVAXConfig", {"tie_word_embeddings": False}),
    "granitemoeshared": (
        "GraniteMoeSharedConfig",
        {"num_local_experts": 6, "num_experts_per_tok": 2, "shared_intermediate_size": 32},
    ),
    "youtu": (
        "YoutuConfig",
        {
            "head_dim": 8, "num_key_value_heads": 4, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
            "q_lora_rank": 24, "kv_lora_rank": 32, "tie_word_embeddings": False,
        },
    ),
}  # fmt: skip
OWN_CODE = Path(__file__).parent / "own_code"


def make_unknown(name: str, folder: Path, change: Callable[[torch.nn.Module], None] | None = None) -> torch.nn.Module:
    """Saves a checkpoint of one of UNKNOWN; returns the model, f32, with eager attention."""
    config_class, values = UNKNOWN[name]
    return _made(getattr(transformers, config_class)(**(SIZES | values)), folder, change)


def _made(
    config: transformers.PretrainedConfig, folder: Path, change: Callable[[torch.nn.Module], None] | None = None
) -> torch.nn.Module:
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    randomize(model)
    if change is not None:
        change(model)
    model.save_pretrained(folder)
    oracle: torch.nn.Module = model.eval()
    return oracle


def make_own(folder: Path) -> None:
    """Saves a checkpoint whose code comes with it: that of Llama under other names."""
    _made(transformers.LlamaConfig(**SIZES, tie_word_embeddings=False), folder)
    bring_own_code(folder)


def bring_own_code(folder: Path) -> None:
    """Turns a Llama's checkpoint into one of an architecture that only its own code knows, which doubles the logits."""
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "tiny_own",
        "architectures": ["TinyOwnForCausalLM"],
        "auto_map": {
            "AutoConfig": "configuration_tiny_own.TinyOwnConfig",
            "AutoModelForCausalLM": "modeling_tiny_own.TinyOwnForCausalLM",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("configuration_tiny_own.py", "modeling_tiny_own.py"):
        (folder / name).write_text((OWN_CODE / f"{name}.txt").read_text())


def bind(folder: Path, dtype: str = "f32", planned_as: Mapping[str, object] | None = None) -> Driver:
    """Binds a checkpoint that transformers' code runs. planned_as: a change of the config that its caches follow."""
    facts = read_model_facts(folder)
    program = outline(with_config_overrides(facts, dict(planned_as or {}))).compiled.program
    execution = execution_of()
    source = ModelSource(folder, facts.config, dtype, facts.architecture)
    executable: ModellingExecutable = ModellingKernelSet().bind_model(source, program, execution)
    return Driver(executable, execution)


def spec_text(source: Path, more: str = "", model: str = "") -> str:
    return (
        "api_version: appliance/v1\nkind: Deployment\nname: tiny\n"
        f"model: {{source: {source}, max_model_len: 128, skip_tokenizer_init: true, dtype: float32{model}}}\n{more}"
    )
