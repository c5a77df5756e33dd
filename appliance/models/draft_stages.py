"""Heads without layers, of which each guesses one further token: Medusa's, and MLP speculators.

They are checkpoints of their own. Each stage is described as a decoder without layers, so that its weights are planned,
translated and packed as all others.
"""

import re
from collections.abc import Mapping
from math import sqrt
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts, TensorFacts
from appliance.layers.draft_spec import KeptStates, MedusaHeadSpec, MlpSpeculatorSpec, StageSpec
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec, WeightSource
from appliance.models.draft_heads import absolute
from appliance.models.errors import ModelError, Problem

StageMethod = Literal["medusa", "mlp_speculator"]
MOST_STAGES: Final = 16
_PREFIX: Final = r"(?:medusa_heads?\.|speculator\.)?"  # of checkpoints that were saved with their model
_MEDUSA_COUNTS: Final = (("medusa_num_heads", "num_heads"), ("medusa_num_layers", "num_hidden_layers"))
_TOKEN_MAP: Final = "token_map"
_NORM: Final = NormSpec("rms", 1e-6)
_OTHER: Final = "choose the head of this model"


class DraftStages(msgspec.Struct, frozen=True):
    """The stages of a checkpoint. keeps: what the model keeps for them.

    The last stage is used again for each token after it, up to `num_tokens`. own_width: of the state that a stage hands
    on to the next; 0 if all read the model's. is_apart: that state stands behind the model's in what a stage is given,
    else in its place. to_target: the ids of the tokens that the heads know, where they do not know all.
    """

    facts: ModelFacts
    stages: tuple[DecoderSpec, ...]
    num_tokens: int
    own_width: int = 0
    is_apart: bool = False
    to_target: TensorFacts | None = None
    keeps: KeptStates = KeptStates()


def stages_of_files(facts: ModelFacts, target: ModelFacts, method: StageMethod) -> DraftStages:
    """Returns the stages of a checkpoint, for a target model. Raises ModelError if it is none of this method, or for
    another model."""
    found = replace(facts, tensors=tuple(absolute(facts, facts.tensors)))
    return _medusa(found, target) if method == "medusa" else _speculator(found, target)


def _medusa(facts: ModelFacts, target: ModelFacts) -> DraftStages:
    config, geometry = facts.config, target.geometry
    num_heads, num_blocks = (_few(config, *keys) for keys in _MEDUSA_COUNTS)
    shared = _shared_head(facts, target) if config.get("original_lm_head") else None
    if shared is not None:
        facts = replace(facts, tensors=(*(each for each in facts.tensors if each.name != shared.name), shared))
    names = {tensor.name: tensor for tensor in facts.tensors}
    has_bias = _named(names, *_block(0, 0, "bias")) is not None
    draft = MedusaHeadSpec(num_blocks, has_bias, _number(config, "logit_scale", 1.0))
    heads = [_output_head(names, number, num_blocks) if shared is None else shared.name for number in range(num_heads)]
    num_rows = names[heads[0]].shape[0] if heads[0] in names and names[heads[0]].shape else geometry.vocab_size
    table = names.get(_named(names, _TOKEN_MAP) or "")
    is_cut = table is not None and table.shape == (num_rows,) and num_rows < geometry.vocab_size
    _check(target, _stated(config, "hidden_size") or geometry.hidden_size, None if is_cut else num_rows)
    stages = tuple(
        _stage(num_rows, geometry.hidden_size, _medusa_weights(names, number, draft, head), draft)
        for number, head in enumerate(heads)
    )
    return DraftStages(facts, stages, num_heads, to_target=table if is_cut else None)


def _block(head: int, block: int, part: str) -> tuple[str, str]:
    """Returns the patterns of a tensor of a block, by the names of the authors' checkpoints and by vLLM's."""
    return rf"{head}\.{block}\.linear\.{part}", rf"blocks\.{head}\.layers\.{block}\.{part}"


def _output_head(names: Mapping[str, TensorFacts], head: int, num_blocks: int) -> str:
    """Returns the tensor of a head's output; the name that it should have, if there is none."""
    stored = f"lm_heads.{head}.weight"
    return _named(names, rf"{head}\.{num_blocks}\.weight", re.escape(stored)) or stored


def _medusa_weights(
    names: Mapping[str, TensorFacts], head: int, draft: MedusaHeadSpec, output: str
) -> dict[str, WeightSource]:
    weights = {"head": WeightSource(output)}
    for block in range(draft.num_blocks):
        for part, suffix in (("weight", ""), *((("bias", ".bias"),) if draft.has_bias else ())):
            name = _named(names, *_block(head, block, part)) or f"blocks.{head}.layers.{block}.{part}"
            weights[f"blocks.{block}{suffix}"] = WeightSource(name)
    return weights


def _shared_head(facts: ModelFacts, target: ModelFacts) -> TensorFacts | None:
    """Returns the one output head of all heads: the checkpoint's own, or the model's."""
    names = {tensor.name: tensor for tensor in facts.tensors}
    own = _named(names, r"lm_heads\.0\.weight", r"lm_head\.weight")
    if own is not None:
        return names[own]
    theirs = {tensor.name: tensor for tensor in absolute(target, target.tensors)}
    table = theirs.get("model.embed_tokens.weight") if target.geometry.tie_embeddings else None
    return theirs.get("lm_head.weight", table)


def _speculator(facts: ModelFacts, target: ModelFacts) -> DraftStages:
    config = facts.config
    num_tokens, width = _few(config, "n_predict"), _count(config, "emb_dim", "hidden_size")
    inner, vocab_size = _stated(config, "inner_dim") or width, _count(config, "vocab_size")
    is_tied = bool(config.get("tie_weights")) and num_tokens > 1
    _check(target, width, vocab_size)
    names = {tensor.name: tensor for tensor in facts.tensors}
    state_weight = 0.5 ** (0.5 / num_tokens)
    scale = sqrt((1.0 - state_weight**2) * (inner / 2)) / state_weight
    norms_given = bool(config.get("scale_input"))
    stages = []
    for number in range(1 if is_tied else num_tokens):
        projections = (0, 1) if is_tied else (number,)
        widths = (width, inner) if is_tied else (inner if number else width,)
        weights = {
            name: WeightSource(_named(names, re.escape(stored)) or stored)
            for name, stored in (
                ("embed", f"emb.{number}.weight"),
                *((f"projections.{at}", f"proj.{each}.weight") for at, each in enumerate(projections)),
                ("norm", f"ln.{number}.weight"),
                ("norm.bias", f"ln.{number}.bias"),
                ("head", f"head.{number}.weight"),
            )
        }
        spec = MlpSpeculatorSpec(widths, scale, norms_given and not number)
        stages.append(_stage(vocab_size, inner, weights, spec))
    return DraftStages(facts, tuple(stages), num_tokens, inner, is_tied)


def _stage(vocab_size: int, width: int, weights: dict[str, WeightSource], stage: StageSpec) -> DecoderSpec:
    return DecoderSpec(vocab_size, width, (), _NORM, weights, draft=stage, ignored_tensors=("*",))


def _check(target: ModelFacts, width: int, vocab_size: int | None) -> None:
    """Raises ModelError if heads for states so wide and tokens so many are those of another model."""
    theirs = target.geometry
    if width != theirs.hidden_size:
        message = f"the head was made for states of {width} numbers; the model's have {theirs.hidden_size}"
        raise ModelError(Problem(message, hint=_OTHER))
    if vocab_size is not None and vocab_size != theirs.vocab_size:
        message = f"the head was made for {vocab_size:,} tokens; the model has {theirs.vocab_size:,}"
        raise ModelError(Problem(message, hint=_OTHER))


def _named(names: Mapping[str, TensorFacts], *patterns: str) -> str | None:
    """Returns the tensor of the first pattern that one has."""
    for pattern in patterns:
        for name in names:
            if re.fullmatch(_PREFIX + pattern, name):
                return name
    return None


def _count(config: Mapping[str, Any], *keys: str) -> int:
    """Returns a count that config.json states under one of these keys. Raises ModelError if it states none."""
    found = next((config[key] for key in keys if key in config), None)
    if type(found) is int and found > 0:
        return found
    message = f"config.json does not state {keys[0]}, which heads of this method have"
    raise ModelError(Problem(message, allowed="an integer of at least 1", hint="choose a checkpoint of this method"))


def _few(config: Mapping[str, Any], *keys: str) -> int:
    """Returns a count of stages or blocks. Raises ModelError if there are too many, or none is stated."""
    found = _count(config, *keys)
    if found > MOST_STAGES:
        message = f"config.json states {keys[0]} {found:,}"
        raise ModelError(Problem(message, allowed=f"1 to {MOST_STAGES}", hint="choose a checkpoint of this method"))
    return found


def _stated(config: Mapping[str, Any], key: str) -> int:
    found = config.get(key)
    return found if type(found) is int and found > 0 else 0


def _number(config: Mapping[str, Any], key: str, default: float) -> float:
    found = config.get(key, default)
    return float(found) if type(found) in (int, float) else default
