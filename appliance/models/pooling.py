"""The head of a model that pools: an embedder's dense modules, a checkpoint's own classifier, or labels' tokens."""

from collections.abc import Iterator, Mapping
from typing import Final, Literal

from msgspec.structs import replace

from appliance.catalog.pooling import PoolingChoice
from appliance.checkpoint.facts import ModelFacts, TensorFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec, HeadMap, PoolingHead, WeightSource
from appliance.models.errors import ModelError, Problem
from appliance.program.record import ActivationKind

_Activation = ActivationKind | Literal["tanh"] | None
# Classifiers by their modules and what follows each, in the order in which they are looked for.
_CLASSIFIERS: Final[tuple[tuple[tuple[str, _Activation], ...], ...]] = (
    (("classifier.dense", "tanh"), ("classifier.out_proj", None)),
    (("pre_classifier", "relu"), ("classifier", None)),
    (("head.dense", "gelu"), ("classifier", None)),
    (("pooler.dense", "tanh"), ("classifier", None)),
    (("classifier", None),),
    (("score.0", "relu"), ("score.2", None)),
    (("score", None),),
    (("v_head", None),),
)
_OTHER_HEADS: Final = (
    "lm_head.*", "cls.*", "*pooler.*", "classifier.*", "pre_classifier.*", "score.*", "v_head.*", "head.*", "decoder.*",
    "vocab_*", "*position_ids",
)  # fmt: skip


def with_pooling(spec: DecoderSpec, facts: ModelFacts, choice: PoolingChoice) -> DecoderSpec:
    """Returns the decoder with a pooling head in place of its output head.

    Raises ModelError if a model that shall classify has no classifier.
    """
    embed = spec.weights["embed"]
    weights = {name: source for name, source in spec.weights.items() if name not in ("head", "head.bias")}
    head = spec.weights.get("head", embed)
    maps: list[HeadMap] = []
    stored = {tensor.name: tensor for tensor in facts.tensors}
    if choice.label_token_ids:
        names = tuple(f"label.{number}" for number in range(len(choice.label_token_ids)))
        rows = ((token, token + 1) for token in choice.label_token_ids)
        weights |= {name: replace(head, rows=span) for name, span in zip(names, rows, strict=True)}
        maps.append(HeadMap(names, len(names)))
    else:
        found = _dense(facts) if choice.task == "embed" else _classifier(stored, choice, spec.norm)
        for each, sources in found:
            maps.append(each)
            weights |= sources
    return replace(
        spec,
        pooling=PoolingHead(choice.kind, tuple(maps)),
        weights=weights,
        head_bias=False,
        logit_soft_cap=None,
        ignored_tensors=(*spec.ignored_tensors, *_OTHER_HEADS),
    )


def _dense(facts: ModelFacts) -> Iterator[tuple[HeadMap, dict[str, WeightSource]]]:
    for number, dense in enumerate(facts.sentence.dense if facts.sentence is not None else ()):
        name = f"dense.{number}"
        sources = {name: WeightSource(f"{dense.name}.linear.weight")}
        if dense.bias:
            sources[f"{name}.bias"] = WeightSource(f"{dense.name}.linear.bias")
        yield HeadMap((name,), dense.out_features, dense.bias, dense.activation), sources


def _classifier(
    stored: Mapping[str, TensorFacts], choice: PoolingChoice, norm: NormSpec
) -> Iterator[tuple[HeadMap, dict[str, WeightSource]]]:
    for modules in _CLASSIFIERS:
        if choice.kind == "all" and modules[0][0] == "pooler.dense":  # it is for the first token alone
            continue
        names = [_stored_module(module, stored) for module, _ in modules]
        if None not in names:
            for number, (name, (_, activation)) in enumerate(zip(filter(None, names), modules, strict=True)):
                yield _map(f"classifier.{number}", name, activation, stored, norm)
            return
    message = f"the checkpoint has no classifier, which the task {choice.task} needs"
    hint = (
        "name a checkpoint with a classifier, or model.override_pooler_config.label_token_ids and model.chat_template"
    )
    raise ModelError(Problem(message, hint=hint))


def _stored_module(module: str, stored: Mapping[str, TensorFacts]) -> str | None:
    """Returns the whole name of a module that has a weight."""
    found = (name for name in stored if name == f"{module}.weight" or name.endswith(f".{module}.weight"))
    return next((name.removesuffix(".weight") for name in found), None)


def _map(
    name: str, module: str, activation: _Activation, stored: Mapping[str, TensorFacts], norm: NormSpec
) -> tuple[HeadMap, dict[str, WeightSource]]:
    """Returns the map of a module. A norm that lies beside it follows its activation."""
    sources, beside = _vectors(name, module, stored), f"{module.rpartition('.')[0]}.norm"
    if not module.startswith("head.") or f"{beside}.weight" not in stored:
        beside = ""
    norms = _vectors(f"{name}.norm", beside, stored)
    after = replace(norm, bias=f"{name}.norm.bias" in norms) if norms else None
    size = stored[f"{module}.weight"].shape[0]
    return HeadMap((name,), size, f"{name}.bias" in sources, activation, after), {**sources, **norms}


def _vectors(name: str, module: str, stored: Mapping[str, TensorFacts]) -> dict[str, WeightSource]:
    parts = {name: f"{module}.weight", f"{name}.bias": f"{module}.bias"}
    return {each: WeightSource(tensor) for each, tensor in parts.items() if tensor in stored}
