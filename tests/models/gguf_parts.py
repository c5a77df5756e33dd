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
        elif name.endswith(("experts.gate_up_proj", "experts.up_proj", "experts.down_proj")):
            yield from _experts(name, tensor.transpose(1, 2) if architecture == "llama4" else tensor)
        elif name.endswith("input_linear.weight"):  # Granite's experts, or its shared block
            suffix = "exps" if tensor.ndim == 3 else "shexp" if config.num_local_experts else ""
            for part, half in zip(("gate", "up"), tensor.chunk(2, dim=-2), strict=True):
                yield f"{layer}.ffn_{part}{suffix and '_' + suffix}.weight", half
        elif name.endswith("block_sparse_moe.router.weight"):
            yield f"{layer}.ffn_gate_inp.weight", tensor
        elif name.endswith("in_proj_qkvz.weight"):
            yield from _by_kind(config, layer, tensor)
        elif name.endswith("kv_b_proj.weight") and architecture in ("deepseek2", "kimi-linear"):
            yield from _apart(config, layer, tensor)
        elif architecture == "kimi-linear" and name.endswith("self_attn.conv1d.weight"):
            for part, rows in zip("qkv", tensor.chunk(3), strict=True):
                yield name.replace("conv1d", f"{part}_conv1d"), rows
        elif ".forget_gate." in name:
            yield name.replace(".forget_gate.", "."), tensor
        else:
            yield name, tensor


def _in_layer(name: str) -> str:
    """The name below its layer."""
    return re.sub(r"^.*\.layers\.\d+\.", "", name)


def _experts(name: str, stack: torch.Tensor) -> Stored:
    for where in (".block_sparse_moe.", ".feed_forward.", ".mixer."):
        name = name.replace(where, ".mlp.")
    if not name.endswith("gate_up_proj"):
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


def _by_kind(config: Any, layer: str, rows: torch.Tensor) -> Stored:
    """All queries, keys and values, and apart from them all gates, in place of those of each key head. What the file
    holds is put back once both have been written."""
    keys, key_dim = config.linear_num_key_heads, config.linear_key_head_dim
    values = config.linear_num_value_heads // keys * config.linear_value_head_dim
    heads = torch.arange(len(rows)).view(keys, -1)
    order = torch.cat([part.reshape(-1) for part in heads.split([key_dim, key_dim, values, values], dim=1)])
    ordered, first = rows[order], len(rows) - keys * values
    yield f"{layer}.attn_qkv.weight", ordered[:first]
    yield f"{layer}.attn_gate.weight", ordered[first:]
    rows[order] = ordered


def file_shape(config: Any, architecture: str, stored_name: str) -> tuple[int, ...] | None:
    """The shape of a vector that files have as a matrix."""
    if architecture in ("mamba2", "granitehybrid", "nemotron_h", "nemotron_h_moe", "falcon-h1"):
        if stored_name.endswith(("ssm_a", "ssm_d")):
            return (-1, 1)
        if stored_name.endswith("ssm_norm.weight"):
            return (getattr(config, "mamba_n_groups", None) or config.n_groups, -1)
    return None


def factor(config: Any, architecture: str, name: str) -> Any:
    """What the weights of a file are multiplied with: Falcon-H1's multipliers."""
    if architecture != "falcon-h1":
        return None
    entry = config.attention_in_multiplier
    factors = {
        "gate_proj.weight": config.mlp_multipliers[0],
        "down_proj.weight": config.mlp_multipliers[1],
        "q_proj.weight": entry,
        "k_proj.weight": entry * config.key_multiplier,
        "v_proj.weight": entry,
        "o_proj.weight": config.attention_out_multiplier,
        "out_proj.weight": config.ssm_out_multiplier,
        "lm_head.weight": config.lm_head_multiplier,
        "embed_tokens.weight": config.embedding_multiplier,
    }
    if name.endswith("in_proj.weight"):
        selected = config.mamba_n_groups * config.mamba_d_state
        widths = (config.mamba_d_ssm, config.mamba_d_ssm, selected, selected, config.mamba_n_heads)
        return config.ssm_in_multiplier * np.repeat(np.float32(config.ssm_multipliers), widths)[:, None]
    return next((value for ending, value in factors.items() if name.endswith(f".{ending}") or name == ending), None)


def row_order(config: Any, architecture: str, name: str, num_rows: int) -> np.ndarray | None:
    """The row of the module that each row of a file is, if they are in another order."""
    if column_order(config, architecture, name) is not None:
        return None
    rows = np.arange(num_rows)
    if ".query_key_value." in name:  # all queries, then all keys, then all values, in place of those of each head
        groups = getattr(config, "num_kv_heads", config.num_attention_heads)
        groups = 1 if architecture == "falcon" and not config.new_decoder_architecture else groups
        heads = rows.reshape(groups, config.num_attention_heads // groups + 2, -1)
        return np.concatenate([heads[:, :-2].reshape(-1), heads[:, -2].reshape(-1), heads[:, -1].reshape(-1)])
    if architecture in _TILED and ".linear_attn." in name:
        return _tiled(config, name, num_rows)
    if architecture in _PERMUTED and (heads := _permuted_heads(config, name)):
        return rows.reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)
    return None


def column_order(config: Any, architecture: str, name: str) -> np.ndarray | None:
    """The column of the module that each column of a file is, if they are in another order."""
    if architecture not in _TILED or not name.endswith("linear_attn.out_proj.weight"):
        return None
    return _tiled(config, name, config.linear_num_value_heads * config.linear_value_head_dim)


def _tiled(config: Any, name: str, size: int) -> np.ndarray | None:
    """The places of rows by value head, with the n-th head of every key head first; queries and keys before them."""
    if name.endswith("linear_attn.norm.weight"):
        return None
    keys = config.linear_num_key_heads
    first = 2 * keys * config.linear_key_head_dim if ".in_proj_qkv." in name or ".conv1d." in name else 0
    heads = np.arange(first, size).reshape(keys, config.linear_num_value_heads // keys, -1)
    return np.concatenate([np.arange(first), heads.swapaxes(0, 1).reshape(-1)])


_TILED = ("qwen35", "qwen35moe")
_PERMUTED = (
    "llama", "arcee", "granite", "granitemoe", "granitehybrid", "minicpm", "baichuan", "smollm3", "internlm2",
    "mistral3", "olmo",
)  # fmt: skip


def _permuted_heads(config: Any, name: str) -> int:
    if ".q_proj." in name:
        return int(config.num_attention_heads)
    return int(config.num_key_value_heads) if ".k_proj." in name else 0
