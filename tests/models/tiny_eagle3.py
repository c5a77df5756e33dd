"""A tiny EAGLE 3 head beside a tiny model, and its published formula in torch."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from torch.nn.functional import linear

from tests.models.tiny import VOCAB_SIZE, make_tiny, randomize
from tests.models.tiny_config import HIDDEN_SIZE, SIZES

LAYERS = (0, 1, 2)  # before which the head reads the model
DRAFT_VOCAB = 192


class _Joined(torch.nn.Module):
    """Stands for the norm before the attention: embedding and state, each with a norm of its own, side by side."""

    def __init__(self, tensors: dict[str, torch.Tensor], eps: float) -> None:
        super().__init__()
        self._norms = [tensors[f"midlayer.{name}.weight"] for name in ("input_layernorm", "hidden_norm")]
        self._eps = eps
        self.embeddings = torch.zeros(0)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        pairs = zip(self._norms, (self.embeddings[None], hidden), strict=True)
        return torch.cat([x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self._eps) * w for w, x in pairs], -1)


@dataclass(frozen=True)
class Eagle3:
    target: Path
    head: Path
    base: torch.nn.Module
    layer: torch.nn.Module
    joined: _Joined
    tensors: dict[str, torch.Tensor]

    def states(self, tokens: list[int]) -> torch.Tensor:
        """Returns what the head reads of the model, [tokens, 3 D]."""
        found = self.base.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        return torch.cat([found[layer][0] for layer in LAYERS], -1)

    def drafts(self, tokens: list[int], count: int) -> list[int]:
        with torch.inference_mode():
            states = linear(self.states(tokens[:-1]), self.tensors["fc.weight"])
            found: list[int] = []
            for _ in range(count):
                self.joined.embeddings = self.base.get_input_embeddings()(torch.tensor([*tokens[1:], *found]))
                summed: list[torch.Tensor] = []
                hook = self.layer.model.norm.register_forward_pre_hook(lambda _, given: summed.append(given[0]))  # noqa: B023
                last = self.layer.model(inputs_embeds=states[None]).last_hidden_state[0, -1]
                hook.remove()
                number = int(linear(last, self.tensors["lm_head.weight"]).argmax())
                found.append(number + int(self.tensors["d2t"][number]))
                states = torch.cat([states, summed[0][0, -1:]])
        return found


def make_eagle3(name: str, folder: Path) -> Eagle3:
    """Saves the tiny model `name`, of three layers at least, and a head that can say every fourth token not."""
    base = make_tiny(name, folder / "model")
    config = transformers.LlamaConfig(**SIZES | {"num_hidden_layers": 1})
    layer = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    attention = layer.model.layers[0].self_attn
    for each in ("q_proj", "k_proj", "v_proj"):
        setattr(attention, each, torch.nn.Linear(2 * HIDDEN_SIZE, getattr(attention, each).out_features, bias=False))
    torch.manual_seed(9)
    randomize(layer)
    said = torch.tensor([token for token in range(VOCAB_SIZE) if token % 4])
    tensors = {
        "fc.weight": torch.randn(HIDDEN_SIZE, 3 * HIDDEN_SIZE) * (3 * HIDDEN_SIZE) ** -0.5,
        "midlayer.input_layernorm.weight": 1.0 + 0.2 * torch.randn(HIDDEN_SIZE),
        "midlayer.hidden_norm.weight": 1.0 + 0.2 * torch.randn(HIDDEN_SIZE),
        "lm_head.weight": torch.randn(DRAFT_VOCAB, HIDDEN_SIZE) * 0.3,
        "d2t": said - torch.arange(DRAFT_VOCAB),
        "t2d": torch.tensor([bool(token % 4) for token in range(VOCAB_SIZE)]),
        "norm.weight": layer.model.norm.weight.detach().clone(),
    }
    for stored, tensor in layer.model.layers[0].state_dict().items():
        if stored != "input_layernorm.weight":
            tensors[f"midlayer.{stored}"] = tensor.clone()
    joined = _Joined(tensors, config.rms_norm_eps)
    layer.model.layers[0].input_layernorm = joined
    _save(config, folder / "head", tensors)
    return Eagle3(folder / "model", folder / "head", base, layer.eval(), joined, tensors)


def _save(config: transformers.PretrainedConfig, head: Path, tensors: dict[str, torch.Tensor]) -> None:
    head.mkdir()
    save_file({name: each.contiguous() for name, each in tensors.items()}, head / "model.safetensors", {"format": "pt"})
    own = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": DRAFT_VOCAB,
        "eagle_aux_hidden_state_layer_ids": list(LAYERS),
    }
    (head / "config.json").write_text(json.dumps(config.to_dict() | own))
