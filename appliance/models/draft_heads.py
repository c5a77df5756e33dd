"""Drafting heads that checkpoints bring, or that are checkpoints of their own.

A head is a decoder of its family with one layer: its tensors get the names that a decoder has, and its family describes
it. What makes it a head is said by a form: how it reads the states of the model, and what it makes.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from appliance.checkpoint.config import text_config
from appliance.checkpoint.facts import ModelFacts, TensorFacts
from appliance.layers.draft_spec import DraftHeadSpec, KeptStates
from appliance.layers.spec import DecoderSpec, LayerSpec, Transform, WeightSource
from appliance.models.errors import ModelError, Problem

HeadMethod = Literal["mtp", "eagle", "eagle3"]

FC, EMBED_NORM, STATE_NORM = "fc.weight", "embed_norm.weight", "state_norm.weight"  # where heads keep their own weights
_EMBED, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


class HeadForm(msgspec.Struct, frozen=True):
    """How a family's head is stored. names: patterns of its tensors with the names that they get; the first that
    matches counts. changes: of the config, for a decoder of its one layer. norms: how its own norms are stored. root:
    of the names of the decoder."""

    names: tuple[tuple[str, str], ...]
    draft: DraftHeadSpec
    changes: Mapping[str, Any] = {}
    norms: Transform = "none"
    root: str = "model."


class DraftHead(msgspec.Struct, frozen=True):
    """A head as a checkpoint: the tensors of one layer under the names of a decoder, beside those that it shares with
    the model. keeps: what the model keeps for it. to_target: of a head that knows some tokens only, the tensor with the
    distance of each from its number to its id."""

    facts: ModelFacts
    form: HeadForm
    keeps: KeptStates
    to_target: TensorFacts | None = None


def _after_layers(first: int) -> HeadForm:
    """The head of DeepSeek V3 and GLM 4.5: a layer after the last one."""
    prefix = rf"model\.layers\.{first}\."
    return HeadForm(
        names=(
            (rf"{prefix}eh_proj\.(.*)", r"fc.\1"),
            (rf"{prefix}enorm\.weight", EMBED_NORM),
            (rf"{prefix}hnorm\.weight", STATE_NORM),
            (rf"{prefix}embed_tokens\.(.*)", r"model.embed_tokens.\1"),
            (rf"{prefix}shared_head\.norm\.(.*)", r"model.norm.\1"),
            (rf"{prefix}shared_head\.head\.(.*)", r"lm_head.\1"),
            (rf"{prefix}(.*)", r"model.layers.0.\1"),
        ),
        draft=DraftHeadSpec(),
        changes={"num_nextn_predict_layers": 0, "first_k_dense_replace": 0, "mlp_layer_types": ["sparse"]},
    )


def _qwen(root: str) -> HeadForm:
    return HeadForm(
        names=(
            (r"mtp\.fc\.(.*)", r"fc.\1"),
            (r"mtp\.pre_fc_norm_embedding\.weight", EMBED_NORM),
            (r"mtp\.pre_fc_norm_hidden\.weight", STATE_NORM),
            (r"mtp\.norm\.(.*)", rf"{root}norm.\1"),
            (r"mtp\.layers\.0\.(.*)", rf"{root}layers.0.\1"),
        ),
        draft=DraftHeadSpec(states="normed"),
        changes={"layer_types": ["full_attention"], "mlp_only_layers": [], "decoder_sparse_step": 1},
        norms="add_one",
        root=root,
    )


_MIMO: Final = HeadForm(
    names=(
        (r"model\.mtp\.layers\.0\.eh_proj\.(.*)", r"fc.\1"),
        (r"model\.mtp\.layers\.0\.enorm\.weight", EMBED_NORM),
        (r"model\.mtp\.layers\.0\.hnorm\.weight", STATE_NORM),
        (r"model\.mtp\.layers\.0\.final_layernorm\.(.*)", r"model.norm.\1"),
        (r"model\.mtp\.layers\.0\.pre_mlp_layernorm\.(.*)", r"model.layers.0.post_attention_layernorm.\1"),
        (r"model\.mtp\.layers\.0\.(.*)", r"model.layers.0.\1"),
    ),
    draft=DraftHeadSpec(states="normed"),
    changes={
        "layer_types": ["sliding_attention"],
        "hybrid_layer_pattern": [1],
        "moe_layer_freq": [0],
        "mlp_layer_types": ["dense"],
    },
)
_EAGLE: Final = HeadForm(
    names=((r"(?:model\.)?embed_tokens\.(.*)", r"model.embed_tokens.\1"), (r"layers\.(.*)", r"model.layers.\1"),
           (r"(?:model\.)?fc\.(.*)", r"fc.\1"), (r"(model\.layers\.|lm_head\.)(.*)", r"\1\2")),
    draft=DraftHeadSpec(has_norms=False),
)  # fmt: skip
_EAGLE3: Final = HeadForm(
    names=(
        (r"(?:model\.)?fc\.(.*)", r"fc.\1"),
        (r"(?:model\.)?(?:midlayer|layers\.0)\.input_layernorm\.weight", EMBED_NORM),
        (r"(?:model\.)?(?:midlayer|layers\.0)\.hidden_norm\.weight", STATE_NORM),
        (r"(?:model\.)?midlayer\.(.*)", r"model.layers.0.\1"),
        (r"(?:model\.)?norm\.weight", "model.norm.weight"),
        (r"(?:model\.)?embed_tokens\.(.*)", r"model.embed_tokens.\1"),
        (r"(model\.layers\.|lm_head\.)(.*)", r"\1\2"),
    ),
    draft=DraftHeadSpec(reads="first_layer", num_states=3),
)
_FORMS: Final[Mapping[str, Callable[[ModelFacts], HeadForm]]] = {
    **dict.fromkeys(
        ("DeepseekV3ForCausalLM", "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM"),
        lambda facts: _after_layers(facts.geometry.num_layers),
    ),
    "MiMoV2FlashForCausalLM": lambda facts: _MIMO,
    **dict.fromkeys(
        ("Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"), lambda facts: _qwen("model.")
    ),
    **dict.fromkeys(
        ("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"),
        lambda facts: _qwen("model.language_model."),
    ),
}


def head_of_model(facts: ModelFacts) -> DraftHead:
    """Returns the head that a model's own checkpoint brings. Raises ModelError if it has none that is known here."""
    form_of = _FORMS.get(facts.architecture)
    if form_of is None:
        message = f"the architecture {facts.architecture} has no head here that predicts more tokens"
        raise ModelError(Problem(message, allowed=", ".join(_FORMS), hint="choose another method"))
    form = form_of(facts)
    if facts.stored.norm_includes_one:
        form = replace(form, norms="none")
    tensors = _renamed(facts.tensors, form)
    if not any(tensor.name == FC for tensor in tensors):
        message = "the checkpoint has no layer that predicts more tokens, or it was not converted"
        raise ModelError(Problem(message, hint="choose a checkpoint with it, or another method"))
    shared = _shared(tensors, facts, form.root)
    changes = {**form.changes, "num_hidden_layers": 1}
    own = _with_config(facts, changes, (*tensors, *shared))
    return DraftHead(own, form, KeptStates())


def head_of_files(facts: ModelFacts, target: ModelFacts, method: HeadMethod) -> DraftHead:
    """Returns the head of a checkpoint of its own, for a target model. Raises ModelError if it is none of this method,
    or one for another model."""
    form = _EAGLE if method == "eagle" else _EAGLE3
    tensors = _renamed(facts.tensors, form)
    names = {tensor.name for tensor in tensors}
    if FC not in names:
        raise ModelError(Problem(f"the checkpoint {facts.root} is no head of the method {method}: it has no fc"))
    theirs, ours = (text_config(each.config) for each in (facts, target))
    if method == "eagle" and theirs.get("hidden_size") != ours.get("hidden_size"):
        message = f"the head was made for states of {theirs.get('hidden_size')} numbers; the model's have"
        raise ModelError(Problem(f"{message} {ours.get('hidden_size')}", hint="choose the head of this model"))
    form = replace(form, draft=_eagle_draft(form.draft, facts, names))
    own = absolute(facts, tensors)
    shared = absolute(target, _shared(tensors, target, "model."))
    changes = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False}
    described = _with_config(facts, changes, (*own, *shared))
    described = replace(described, architecture="LlamaForCausalLM")
    layers = _kept_layers(theirs, target.geometry.num_layers) if method == "eagle3" else ()
    to_target = next((each for each in absolute(facts, facts.tensors) if each.name.endswith("d2t")), None)
    return DraftHead(described, form, KeptStates(layers), to_target)


def as_head(spec: DecoderSpec, head: DraftHead) -> DecoderSpec:
    """Returns the decoder of one layer that a family makes of a head's tensors, as the head that it is."""
    draft, names = head.form.draft, {tensor.name for tensor in head.facts.tensors}
    weights = dict(spec.weights)
    weights["fc"] = WeightSource(FC)
    if draft.fc_bias:
        weights["fc.bias"] = WeightSource("fc.bias")
    for name, tensor in (("embed_norm", EMBED_NORM), ("state_norm", STATE_NORM)):
        if draft.has_norms:
            weights[name] = WeightSource(tensor, head.form.norms)
    has_norm = weights["norm"].tensor in names
    if not has_norm:
        del weights["norm"]
    layers = spec.layers
    if draft.reads == "first_layer" or f"{head.form.root}layers.0.input_layernorm.weight" not in names:
        weights.pop("layers.0.attention_norm", None)
        layers = (_bare(layers[0]), *layers[1:])
    return replace(
        spec, weights=weights, layers=layers, draft=draft, has_final_norm=has_norm, keeps=None, ignored_tensors=("*",)
    )


def _bare(layer: LayerSpec) -> LayerSpec:
    return replace(layer, residual=replace(layer.residual, bare_mixer=True))


def _eagle_draft(draft: DraftHeadSpec, facts: ModelFacts, names: set[str]) -> DraftHeadSpec:
    values = text_config(facts.config)
    size = values.get("draft_vocab_size")
    return replace(
        draft,
        fc_bias="fc.bias" in names,
        norms_stream=bool(values.get("norm_before_residual")),
        head_size=size if isinstance(size, int) and size != values.get("vocab_size") else None,
    )


def _kept_layers(values: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """Returns the layers before which EAGLE 3 reads the model: early, in the middle, and late."""
    stated = values.get("eagle_aux_hidden_state_layer_ids")
    if isinstance(stated, list) and len(stated) == 3 and all(isinstance(each, int) for each in stated):
        return tuple(stated)
    return (2, num_layers // 2, num_layers - 3)


def _renamed(tensors: Iterable[TensorFacts], form: HeadForm) -> list[TensorFacts]:
    """Returns the tensors that the form names, under their new names."""
    found = []
    for tensor in tensors:
        for pattern, name in form.names:
            if (match := re.fullmatch(pattern, tensor.name)) is not None:
                found.append(replace(tensor, name=match.expand(name)))
                break
    return found


def _shared(own: Iterable[TensorFacts], target: ModelFacts, root: str) -> list[TensorFacts]:
    """Returns the model's table and output head, where the head has none of its own."""
    names = {tensor.name for tensor in own}
    theirs = {tensor.name: tensor for tensor in target.tensors}
    tables = [theirs[name] for name in (f"{root}embed_tokens.weight", _HEAD) if name in theirs and name not in names]
    if _HEAD not in names and _HEAD not in theirs and target.geometry.tie_embeddings:
        table = theirs.get(f"{root}embed_tokens.weight")
        tables += [] if table is None else [replace(table, name=_HEAD)]
    return tables


def folder_of(facts: ModelFacts) -> Path:
    """Returns the folder of the files of a checkpoint."""
    root = Path(facts.root).resolve()
    return root if root.is_dir() else root.parent


def absolute(facts: ModelFacts, tensors: Iterable[TensorFacts]) -> list[TensorFacts]:
    """Returns tensors that are found from any folder."""
    folder = folder_of(facts)

    def moved(tensor: TensorFacts | None) -> TensorFacts | None:
        return None if tensor is None else one(tensor)

    def one(tensor: TensorFacts) -> TensorFacts:
        return replace(
            tensor,
            file=str(folder / tensor.file),
            scale=moved(tensor.scale),
            zero_point=moved(tensor.zero_point),
            order=moved(tensor.order),
            bitmask=moved(tensor.bitmask),
            more=tuple(one(each) for each in tensor.more),
        )

    return [one(tensor) for tensor in tensors]


def _with_config(facts: ModelFacts, changes: Mapping[str, Any], tensors: Iterable[TensorFacts]) -> ModelFacts:
    config = dict(facts.config)
    if isinstance(config.get("text_config"), dict):
        config["text_config"] = {**config["text_config"], **changes}
    else:
        config |= changes
    geometry = replace(facts.geometry, num_layers=1)
    return replace(facts, config=config, geometry=geometry, tensors=tuple(tensors))
