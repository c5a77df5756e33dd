"""Tiny drafting heads beside tiny models, made with transformers' own layers, and their published formulas in torch."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.nn.functional import linear

from tests.models.tiny import make_tiny, randomize


@dataclass(frozen=True)
class Tiny:
    """A model and its head. name: of the tiny model. changes: of its config, for a model of the head's layer. rename:
    from a name of that model to one of the checkpoint. is_normed: the states that the head makes are normed. less_one:
    norms are stored less one."""

    name: str
    changes: dict[str, Any]
    rename: Callable[[str], str | None]
    fc: str
    embed_norm: str | None
    state_norm: str | None
    is_normed: bool = False
    less_one: bool = False


@dataclass(frozen=True)
class TinyHead:
    """A checkpoint with its head; target: the folder of the model, which the head may be part of. keeps: layers before
    which the model is read, none for its final norm."""

    tiny: Tiny
    target: Path
    head: Path
    base: torch.nn.Module
    layer: torch.nn.Module
    tensors: dict[str, torch.Tensor]

    def drafts(self, tokens: list[int], count: int) -> tuple[list[int], torch.Tensor]:
        """Returns the greedy drafts, and the logits of the first."""
        with torch.inference_mode():
            states = self.base.model(torch.tensor([tokens])).last_hidden_state[0, : len(tokens) - 1]
            found: list[int] = []
            first = torch.zeros(0)
            for _ in range(count):
                following = torch.tensor([*tokens[1:], *found])
                made, logits = self._run(states, following)
                first = logits if not found else first
                found.append(int(logits.argmax()))
                states = torch.cat([states, made[-1:]])
        return found, first

    def _run(self, states: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        embeddings = self.base.get_input_embeddings()(tokens)
        joined = torch.cat([self._norm(self.tiny.embed_norm, embeddings), self._norm(self.tiny.state_norm, states)], -1)
        hidden = linear(joined, self.tensors[self.tiny.fc])
        summed: list[torch.Tensor] = []
        hook = self.layer.model.norm.register_forward_pre_hook(lambda _, given: summed.append(given[0]))
        normed = self.layer.model(inputs_embeds=hidden[None]).last_hidden_state[0]
        hook.remove()
        logits = self.layer.lm_head(normed[-1])
        return normed if self.tiny.is_normed else summed[0][0], logits

    def _norm(self, name: str | None, x: torch.Tensor) -> torch.Tensor:
        if name is None:
            return x
        weight = self.tensors[name] + (1.0 if self.tiny.less_one else 0.0)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.base.config.rms_norm_eps) * weight


def _after(count: int) -> Callable[[str], str | None]:
    names = {"model.norm.weight": "shared_head.norm.weight", "lm_head.weight": "shared_head.head.weight"}

    def rename(name: str) -> str | None:
        if name in names or name == "model.embed_tokens.weight":
            return f"model.layers.{count}.{names.get(name, 'embed_tokens.weight')}"
        return name.replace("model.layers.0.", f"model.layers.{count}.")

    return rename


def _qwen(name: str) -> str | None:
    if name.startswith("model.layers.0."):
        return name.replace("model.", "mtp.", 1)
    return "mtp.norm.weight" if name == "model.norm.weight" else None


def _mimo(name: str) -> str | None:
    if name.startswith("model.layers.0."):
        name = name.replace("model.layers.0.", "model.mtp.layers.0.")
        return name.replace("post_attention_layernorm", "pre_mlp_layernorm")
    return "model.mtp.layers.0.final_layernorm.weight" if name == "model.norm.weight" else None


def _eagle(name: str) -> str | None:
    return name.removeprefix("model.") if name.startswith("model.layers.0.") and "input_layernorm" not in name else None


_SPARSE = {"first_k_dense_replace": 0, "mlp_layer_types": ["sparse"], "num_hidden_layers": 1}
_FULL = {"layer_types": ["full_attention"], "mlp_only_layers": [], "num_hidden_layers": 1}


def _deepseek(name: str, layers: int) -> Tiny:
    prefix = f"model.layers.{layers}"
    norms = (f"{prefix}.enorm.weight", f"{prefix}.hnorm.weight")
    return Tiny(name, _SPARSE, _after(layers), f"{prefix}.eh_proj.weight", *norms)


def _of_qwen(name: str) -> Tiny:
    norms = ("mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight")
    return Tiny(name, _FULL, _qwen, "mtp.fc.weight", *norms, is_normed=True, less_one=True)


HEADS = {
    "deepseek3": _deepseek("deepseek3", 3),
    "glm4_moe": _deepseek("glm4_moe", 2),
    "glm4_moe_lite": _deepseek("glm4_moe_lite", 2),
    "qwen3_next": _of_qwen("qwen3_next"),
    "qwen3_5": _of_qwen("qwen3_5"),
    "qwen3_5_moe": _of_qwen("qwen3_5_moe"),
    "mimo2": Tiny(
        "mimo2",
        {"layer_types": ["sliding_attention"], "mlp_layer_types": ["dense"], "num_hidden_layers": 1},
        _mimo,
        "model.mtp.layers.0.eh_proj.weight",
        "model.mtp.layers.0.enorm.weight",
        "model.mtp.layers.0.hnorm.weight",
        is_normed=True,
    ),
    "eagle": Tiny("llama", {"num_hidden_layers": 1}, _eagle, "fc.weight", None, None),
}


def make_head(name: str, folder: Path, *, is_right: bool = False) -> TinyHead:
    """Saves a tiny model and its head. is_right: the model says what follows its last token alone, nearly, and the
    head knows that; else all weights are random."""
    tiny, target = HEADS[name], folder / "model"
    base = make_tiny(tiny.name, target, quieted if is_right else None)
    values = base.config.to_dict() | tiny.changes
    layer = transformers.AutoModelForCausalLM.from_config(
        type(base.config).from_dict(values), dtype=torch.float32, attn_implementation="eager"
    )
    torch.manual_seed(7)
    randomize(layer)
    if is_right:
        quieted(layer)
    with torch.no_grad():
        layer.lm_head.weight.copy_(base.lm_head.weight)
        layer.get_input_embeddings().weight.copy_(base.get_input_embeddings().weight)
        if is_right:
            layer.model.norm.weight.copy_(base.model.norm.weight)
        if name == "eagle":
            layer.model.layers[0].input_layernorm = torch.nn.Identity()
            layer.model.norm = torch.nn.Identity()
    tensors = _own(tiny, base.config.hidden_size, is_right=is_right)
    layer.save_pretrained(folder / "layer")
    for stored, tensor in load_file(folder / "layer" / "model.safetensors").items():
        if (renamed := tiny.rename(stored)) is not None:
            tensors[renamed] = tensor
    head = folder / "head" if name == "eagle" else target
    _save(target, head, tensors)
    return TinyHead(tiny, target, head, base, layer.eval(), tensors)


def _own(tiny: Tiny, width: int, *, is_right: bool) -> dict[str, torch.Tensor]:
    fc = torch.randn(width, 2 * width) * (2 * width) ** -0.5
    if is_right:
        fc = torch.cat([torch.eye(width), torch.zeros(width, width)], dim=1)
    found = {tiny.fc: fc}
    for norm in (tiny.embed_norm, tiny.state_norm):
        if norm is not None:
            weight = torch.ones(width) if is_right else 1.0 + 0.2 * torch.randn(width)
            found[norm] = weight - (1.0 if tiny.less_one else 0.0)
    return found


def _save(target: Path, head: Path, tensors: dict[str, torch.Tensor]) -> None:
    config = json.loads((target / "config.json").read_text())
    if head == target:
        stored = load_file(target / "model.safetensors") | {name: each.contiguous() for name, each in tensors.items()}
        save_file(stored, target / "model.safetensors", {"format": "pt"})
        (target / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
        return
    head.mkdir()
    save_file({name: each.contiguous() for name, each in tensors.items()}, head / "model.safetensors", {"format": "pt"})
    own = {"architectures": ["LlamaForCausalLMEagle"], "num_hidden_layers": 1}
    (head / "config.json").write_text(json.dumps(config | own))


@torch.no_grad()
def quieted(model: torch.nn.Module) -> None:
    """Makes all that layers add to the stream small, and the logits sharp: the last token says nearly all about the
    next one."""
    for name, parameter in model.named_parameters():
        if any(part in name for part in ("o_proj", "out_proj", "down_proj")):
            parameter.mul_(0.01)
        elif "lm_head" in name:
            parameter.mul_(3.0)
