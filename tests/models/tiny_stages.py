"""Tiny heads without layers beside a tiny model, Medusa's and MLP speculators, and their formulas in torch."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn.functional import gelu, linear, silu

from tests.models.tiny import VOCAB_SIZE, make_tiny
from tests.models.tiny_config import HIDDEN_SIZE
from tests.models.tiny_heads import quieted

NUM_STAGES = 3
NUM_CUT = 160  # tokens that a head of few tokens knows
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class TinyStages:
    """A model, and the checkpoint of its heads. drafts: of tokens and a count, the greedy drafts."""

    method: str
    target: Path
    head: Path
    base: torch.nn.Module
    drafts: Callable[[list[int], int], list[int]]


def states(base: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    """Returns what the model's output head reads, [tokens, D]."""
    with torch.inference_mode():
        return base.model(torch.tensor([tokens])).last_hidden_state[0]


def make_stages(name: str, folder: Path, *, is_right: bool = False) -> TinyStages:
    """Saves a tiny model and heads. is_right: the model says what follows its last token alone, nearly, and the heads
    know that; else all weights are random."""
    base = make_tiny("llama", folder / "model", quieted if is_right else None)
    head = folder / "head"
    head.mkdir()
    torch.manual_seed(3)
    method = "medusa" if name.startswith("medusa") else "mlp_speculator"
    drafts = _MAKERS[name](base, head, is_right)
    return TinyStages(method, folder / "model", head, base, drafts)


def _followers(base: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the state of each token alone, [V, D], and the token that follows it."""
    with torch.inference_mode():
        found = base.model(torch.arange(VOCAB_SIZE)[:, None]).last_hidden_state[:, 0]
        return found, base.lm_head(found).argmax(-1)


def _write(head: Path, config: dict[str, Any], tensors: Tensors) -> None:
    (head / "config.json").write_text(json.dumps(config))
    save_file({name: each.contiguous() for name, each in tensors.items()}, head / "model.safetensors")


def _medusa_drafts(
    base: torch.nn.Module,
    blocks: list[list[tuple[torch.Tensor, torch.Tensor | None]]],
    heads: list[torch.Tensor],
    ids: torch.Tensor | None = None,
) -> Callable[[list[int], int], list[int]]:
    def drafts(tokens: list[int], count: int) -> list[int]:
        state, found = states(base, tokens[:-1])[-1], []
        for number in range(min(count, len(heads))):
            x = state
            for weight, bias in blocks[number]:
                x = x + silu(linear(x, weight, bias))
            place = linear(x, heads[number]).argmax()
            found.append(int(place if ids is None else ids[place]))
        return found

    return drafts


def _right_heads(base: torch.nn.Module) -> list[torch.Tensor]:
    """Returns heads that find a state among those of all tokens, and say what comes so many tokens later."""
    known, follower = _followers(base)
    later, found = follower[follower], []
    for _ in range(NUM_STAGES):
        found.append(torch.zeros(VOCAB_SIZE, HIDDEN_SIZE).index_add_(0, later, known))
        later = follower[later]
    return found


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape) * 1.5 * shape[-1] ** -0.5


def _block(is_right: bool) -> torch.Tensor:
    return _random(HIDDEN_SIZE, HIDDEN_SIZE) * (0.0 if is_right else 1.0)


def _medusa(base: torch.nn.Module, head: Path, is_right: bool) -> Callable[[list[int], int], list[int]]:
    """The authors' form: a pickle of PyTorch, and a config without a size."""
    heads = _right_heads(base) if is_right else [_random(VOCAB_SIZE, HIDDEN_SIZE) for _ in range(NUM_STAGES)]
    blocks = [[(_block(is_right), torch.randn(HIDDEN_SIZE) * (0.0 if is_right else 1.0))] for _ in heads]
    tensors: Tensors = {}
    for number, output in enumerate(heads):
        weight, bias = blocks[number][0]
        tensors |= {f"{number}.0.linear.weight": weight, f"{number}.0.linear.bias": bias, f"{number}.1.weight": output}
    config = {"medusa_num_heads": NUM_STAGES, "medusa_num_layers": 1, "base_model_name_or_path": "owner/model"}
    (head / "config.json").write_text(json.dumps(config))
    torch.save(tensors, head / "medusa_lm_head.pt")
    return _medusa_drafts(base, blocks, heads)


def _medusa_cut(base: torch.nn.Module, head: Path, is_right: bool) -> Callable[[list[int], int], list[int]]:
    """vLLM's form, with heads that know some tokens only, and without biases."""
    ids = torch.randperm(VOCAB_SIZE)[:NUM_CUT]
    heads = _right_heads(base) if is_right else [_random(VOCAB_SIZE, HIDDEN_SIZE) for _ in range(NUM_STAGES)]
    heads = [each[ids] for each in heads]
    blocks: list[list[tuple[torch.Tensor, torch.Tensor | None]]] = [[(_block(is_right), None)] * 2 for _ in heads]
    tensors: Tensors = {"token_map": ids}
    for number, output in enumerate(heads):
        tensors[f"lm_heads.{number}.weight"] = output
        for at, (weight, _) in enumerate(blocks[number]):
            tensors[f"blocks.{number}.layers.{at}.weight"] = weight.clone()
    config = {
        "model_type": "medusa", "architectures": ["MedusaModel"], "hidden_size": HIDDEN_SIZE, "num_heads": NUM_STAGES,
        "num_hidden_layers": 2, "vocab_size": VOCAB_SIZE, "truncated_vocab_size": NUM_CUT, "logit_scale": 2.0,
    }  # fmt: skip
    _write(head, config, tensors)
    return _medusa_drafts(base, blocks, heads, ids)


def _medusa_shared(base: torch.nn.Module, head: Path, is_right: bool) -> Callable[[list[int], int], list[int]]:
    """All heads have the output head of the model."""
    blocks: list[list[tuple[torch.Tensor, torch.Tensor | None]]] = [[(_block(False), None)] for _ in range(NUM_STAGES)]
    tensors = {f"blocks.{number}.layers.0.weight": each[0][0] for number, each in enumerate(blocks)}
    config = {
        "model_type": "medusa", "hidden_size": HIDDEN_SIZE, "num_heads": NUM_STAGES, "num_hidden_layers": 1,
        "vocab_size": VOCAB_SIZE, "original_lm_head": True,
    }  # fmt: skip
    _write(head, config, tensors)
    return _medusa_drafts(base, blocks, [base.lm_head.weight.detach()] * NUM_STAGES)


def _speculator(
    base: torch.nn.Module, head: Path, is_right: bool, *, is_tied: bool
) -> Callable[[list[int], int], list[int]]:
    inner = VOCAB_SIZE if is_right or is_tied else HIDDEN_SIZE
    count = 1 if is_tied else NUM_STAGES
    tensors = {f"ln.{at}.{part}": torch.randn(inner) for at in range(count) for part in ("weight", "bias")}
    for at in range(count):
        tensors |= {f"emb.{at}.weight": _random(VOCAB_SIZE, inner), f"head.{at}.weight": _random(VOCAB_SIZE, inner)}
    for at in range(2 if is_tied else NUM_STAGES):
        tensors[f"proj.{at}.weight"] = _random(inner, inner if at else HIDDEN_SIZE)
    if is_right:
        _know_followers(base, tensors)
    config = {
        "model_type": "mlp_speculator", "architectures": ["MLPSpeculatorPreTrainedModel"], "emb_dim": HIDDEN_SIZE,
        "inner_dim": 0 if inner == HIDDEN_SIZE else inner, "n_predict": NUM_STAGES, "vocab_size": VOCAB_SIZE,
        "tie_weights": is_tied, "scale_input": is_tied,
    }  # fmt: skip
    _write(head, config, {f"speculator.{name}" if is_tied else name: each for name, each in tensors.items()})
    return _speculator_drafts(base, tensors, inner, is_tied)


def _know_followers(base: torch.nn.Module, tensors: Tensors) -> None:
    """Makes each embedding a place of its own, from which the head reads what follows."""
    _, follower = _followers(base)
    for name in tensors:
        if name.startswith("emb."):
            tensors[name] = torch.eye(VOCAB_SIZE)
        elif name.startswith("proj."):
            tensors[name] = torch.zeros_like(tensors[name])
        elif name.startswith("head."):
            tensors[name] = torch.zeros(VOCAB_SIZE, VOCAB_SIZE).index_put_(
                (follower, torch.arange(VOCAB_SIZE)), torch.tensor(1.0)
            )
        else:
            tensors[name] = torch.full((VOCAB_SIZE,), 1.0 if name.endswith("weight") else 0.0)


def _speculator_drafts(
    base: torch.nn.Module, tensors: Tensors, inner: int, is_tied: bool
) -> Callable[[list[int], int], list[int]]:
    state_weight = 0.5 ** (0.5 / NUM_STAGES)
    embedding_weight = sqrt((1 - state_weight**2) * (inner / 2))

    def norm(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    def drafts(tokens: list[int], count: int) -> list[int]:
        state, last, found = states(base, tokens[:-1])[-1], tokens[-1], []
        state = norm(state) / sqrt(2) if is_tied else state
        for number in range(min(count, NUM_STAGES)):
            at = 0 if is_tied else number
            x = linear(state, tensors[f"proj.{min(number, 1) if is_tied else number}.weight"])
            x = x + embedding_weight / state_weight * tensors[f"emb.{at}.weight"][last]
            state = gelu(norm(x) * tensors[f"ln.{at}.weight"] + tensors[f"ln.{at}.bias"])
            last = int(linear(state, tensors[f"head.{at}.weight"]).argmax())
            found.append(last)
        return found

    return drafts


_MAKERS: dict[str, Callable[[torch.nn.Module, Path, bool], Callable[[list[int], int], list[int]]]] = {
    "medusa": _medusa,
    "medusa-cut": _medusa_cut,
    "medusa-shared": _medusa_shared,
    "speculator": lambda base, head, is_right: _speculator(base, head, is_right, is_tied=False),
    "speculator-tied": lambda base, head, is_right: _speculator(base, head, is_right, is_tied=True),
}
NAMES = tuple(_MAKERS)
