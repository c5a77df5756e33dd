"""The tensors of a model as llama.cpp's converter cuts and orders them: views of the model's own, so that what a file
holds can be put back into it."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

# Tensors of Gemma 3n and 4 whose names are not in the gguf package's table.
_GEMMA = {
    "altup.correct_output_scale": "altup_correct_scale.weight",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "layer_scalar": "layer_output_scale.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
}
Stored = Iterator[tuple[str, torch.Tensor]]


def stored_parts(config: Any, architecture: str, state: dict[str, torch.Tensor]) -> Stored:
    """The tensors by Hugging Face's names, or by GGUF's where a file has them in other pieces."""
    for name, tensor in state.items():
        layer = f"blk.{name.split('.')[2]}" if ".layers." in name else ""
        if tensor.ndim > 1 and "sinks" not in name and f"{name}_bias" in state:  # gpt-oss: (in, out), in turn
            yield from _in_turn(name, tensor.transpose(1, 2))
        elif name.endswith("proj_bias"):
            yield from _in_turn(name.removesuffix("_bias"), tensor, "bias")
        elif architecture in ("gemma3n", "gemma4") and (stored := _GEMMA.get(_in_layer(name))):
            yield f"{layer}.{stored}", tensor
        elif ".altup_" in name and name.endswith(".0.weight"):
            maps = [each for key, each in state.items() if key.startswith(name.removesuffix("0.weight"))]
            yield name.replace(".0.weight", ".weight"), torch.stack(maps)
        elif ".altup_" in name and "projections" in name:
            continue  # part of the stack
        elif name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            yield from _experts(name, tensor.transpose(1, 2) if architecture == "llama4" else tensor)
        elif name.endswith("input_linear.weight"):  # Granite's experts, or its shared block
            suffix = "exps" if tensor.ndim == 3 else "shexp" if config.num_local_experts else ""
            for part, half in zip(("gate", "up"), tensor.chunk(2, dim=-2), strict=True):
                yield f"{layer}.ffn_{part}{suffix and '_' + suffix}.weight", half
        elif name.endswith("block_sparse_moe.router.weight"):
            yield f"{layer}.ffn_gate_inp.weight", tensor
        elif name.endswith("kv_b_proj.weight") and architecture == "deepseek2":
            yield from _apart(config, layer, tensor)
        else:
            yield name, tensor


def _in_layer(name: str) -> str:
    """The name below its layer."""
    return re.sub(r"^.*\.layers\.\d+\.", "", name)


def _experts(name: str, stack: torch.Tensor) -> Stored:
    name = name.replace(".block_sparse_moe.", ".mlp.")
    if name.endswith("down_proj"):
        yield f"{name}.weight", stack
        return
    for part, half in zip(("gate_proj", "up_proj"), stack.chunk(2, dim=1), strict=True):
        yield name.replace("gate_up_proj", f"{part}.weight"), half


def _in_turn(name: str, rows: torch.Tensor, suffix: str = "weight") -> Stored:
    """A stack, or its gates and ups whose rows take turns."""
    if not name.endswith("gate_up_proj"):
        yield f"{name}.{suffix}", rows
        return
    for at, part in enumerate(("gate_proj", "up_proj")):
        yield name.replace("gate_up_proj", f"{part}.{suffix}"), rows[:, at::2]


def _apart(config: Any, layer: str, kv_b: torch.Tensor) -> Stored:
    """The maps of keys, which are stored for the other direction, and those of values."""
    heads = kv_b.view(config.num_attention_heads, -1, kv_b.shape[1])
    yield f"{layer}.attn_k_b.weight", heads[:, : config.qk_nope_head_dim].transpose(1, 2)
    yield f"{layer}.attn_v_b.weight", heads[:, config.qk_nope_head_dim :]


def row_order(config: Any, architecture: str, name: str, num_rows: int) -> np.ndarray | None:
    """The row of the module that each row of a file is, if they are in another order."""
    rows = np.arange(num_rows)
    if ".query_key_value." in name:  # all queries, then all keys, then all values, in place of those of each head
        groups = getattr(config, "num_kv_heads", config.num_attention_heads)
        groups = 1 if architecture == "falcon" and not config.new_decoder_architecture else groups
        heads = rows.reshape(groups, config.num_attention_heads // groups + 2, -1)
        return np.concatenate([heads[:, :-2].reshape(-1), heads[:, -2].reshape(-1), heads[:, -1].reshape(-1)])
    if architecture in _PERMUTED and (heads := _permuted_heads(config, name)):
        return rows.reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)
    return None


_PERMUTED = ("llama", "arcee", "granite", "granitemoe", "minicpm", "baichuan", "smollm3")


def _permuted_heads(config: Any, name: str) -> int:
    if ".q_proj." in name:
        return int(config.num_attention_heads)
    return int(config.num_key_value_heads) if ".k_proj." in name else 0
