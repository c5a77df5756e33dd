"""Pass `pooling`: whether a model generates or pools, which rows it pools, and what is made of the vectors.

The kind of pooling is that of the spec, else of the sentence-transformers files, else of the architecture.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from msgspec.structs import replace

from appliance.catalog.architectures import ARCHITECTURES
from appliance.catalog.pooling import POOLING_KINDS, PoolingKind, PoolingTask
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import ModelFacts
from appliance.models.describe import Described
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.plan.modelling import Modelled
from appliance.plan.pooling_settings import (
    RULE,
    SETTINGS,
    STEP,
    check_names,
    logit_scale,
    longest_in_chunks,
    pooling_type,
    step_tag,
)
from appliance.plan.tokenizer import refuse_pooling
from appliance.plan.types import PoolingPlan, VectorActivation

_CONVERTED: Final[Mapping[str, PoolingTask]] = {"embed": "embed", "classify": "classify", "reward": "classify"}
_REWARD: Final = "ForRewardModel"  # a number without bounds
_PROCESS_REWARD: Final = "ForProcessRewardModel"  # the chance that a step is right
_ACTIVATIONS: Final[Mapping[str, VectorActivation]] = {"Sigmoid": "sigmoid", "Identity": "none", "Softmax": "softmax"}


def plan_pooling(inputs: PlanInputs, modelled: Modelled, ledger: Ledger) -> PoolingPlan | None:
    """Returns how the model pools; None if it generates, as all do that run on modelling code."""
    task = None if modelled.plan is not None else _task(inputs, ledger)
    if modelled.plan is not None and (wanted := _wanted(inputs))[0] not in (None, "generate"):
        ledger.refuse(wanted[1], RULE, "a model that runs on modelling code pools nothing", hint="write generate")
    settings = inputs.spec.model.override_pooler_config or {}
    if task is None:
        if settings:
            ledger.refuse(SETTINGS, RULE, "the model generates, and pools nothing", hint="write model.task: embed")
        return None
    _refuse_processors(inputs, ledger)
    refuse_pooling(inputs, ledger)
    check_names(settings, ledger)
    sentence, config = inputs.model.sentence, inputs.model.config
    labels = ("LABEL_0",) if inputs.model.architecture.endswith(_REWARD) else _labels(config)
    label_token_ids = _label_token_ids(settings, inputs.model, task, ledger)
    is_reward = inputs.spec.model.convert == "reward" or inputs.model.architecture.endswith(_REWARD)
    kind = _kind(inputs.model, task, settings, ledger, is_reward=is_reward)
    num_labels = len(label_token_ids) or len(labels)
    logit_mean, logit_sigma = logit_scale(settings, task, ledger)
    return PoolingPlan(
        task=task,
        kind=kind,
        activation=_activation(inputs.model, task, settings, num_labels, ledger, is_reward=is_reward),
        step_tag_id=step_tag(settings, inputs.model.geometry.vocab_size, ledger),
        logit_mean=logit_mean,
        logit_sigma=logit_sigma,
        max_embed_len=longest_in_chunks(settings, task, kind, ledger),
        label_token_ids=label_token_ids,
        labels=labels if task != "embed" and not label_token_ids else (),
        matryoshka_dimensions=_dimensions(settings, config, ledger),
        prompts={} if sentence is None else sentence.prompts,
        default_prompt=None if sentence is None else sentence.default_prompt,
        is_causal=_is_causal(inputs.model.architecture),
    )


def _refuse_processors(inputs: PlanInputs, ledger: Ledger) -> None:
    if inputs.spec.decoding.logits_processors:
        message = "the model pools, and samples no token whose logits a processor could change"
        ledger.refuse("decoding.logits_processors", RULE, message, hint="remove it")


def described_pooling(pooling: PoolingPlan | None, described: Described) -> PoolingPlan | None:
    """Returns the plan with what the program tells: the width of a vector, and whether tokens have types."""
    if pooling is None:
        return None
    width = described.compiled.program.logits.width
    has_types, keeps = described.spec.has_token_types, bool(described.compiled.program.caches)
    return replace(pooling, width=width, has_token_types=has_types, runs_whole=pooling.kind != "last" or not keeps)


def _task(inputs: PlanInputs, ledger: Ledger) -> PoolingTask | None:
    spec, model = inputs.spec.model, inputs.model
    known = model.known
    tasks = known.tasks if known is not None else ("generate",)
    wanted, path = _wanted(inputs)
    if wanted is None:
        return _task_of_checkpoint(inputs, tasks, ledger)
    if wanted not in tasks:
        message = f"the architecture {model.architecture} cannot {wanted}"
        ledger.refuse(path, RULE, message, allowed=f"auto, {', '.join(tasks)}", hint="write auto")
        return _task_of_checkpoint(inputs, tasks, ledger)
    ledger.take("model.task", path, wanted)
    if wanted == "generate" and spec.runner == "pooling":
        return None  # refused by a rule of the spec
    return None if wanted == "generate" else cast(PoolingTask, wanted)


def _wanted(inputs: PlanInputs) -> tuple[str | None, str]:
    """Returns the task that the spec names, and the field that does; None for none."""
    spec = inputs.spec.model
    if spec.task != AUTO:
        return spec.task, "model.task"
    if spec.convert in _CONVERTED:
        return _CONVERTED[spec.convert], "model.convert"
    if spec.runner == "generate":
        return "generate", "model.runner"
    return None, "model.task"


def _task_of_checkpoint(inputs: PlanInputs, tasks: Sequence[str], ledger: Ledger) -> PoolingTask | None:
    model = inputs.model
    if model.label_token_ids and "score" in tasks:
        reason = "its files name the tokens whose logits are scores"
        return cast(PoolingTask, ledger.decide("model.task", "score", "model", reason))
    if model.sentence is not None and model.sentence.kind is not None and "embed" in tasks:
        reason = "its files are those of an embedder"
        return cast(PoolingTask, ledger.decide("model.task", "embed", "model", reason))
    if inputs.spec.model.runner == "pooling" and tasks[0] == "generate":
        return cast(PoolingTask, ledger.take("model.task", "model.runner", "embed"))
    task = tasks[0]
    if task == "classify" and len(_labels(model.config)) == 1 and not _judges_tokens(model):
        task = "score"
    ledger.decide("model.task", task, "model", f"what {model.architecture} is for")
    return cast(PoolingTask, task) if task in ("embed", "classify", "score") else None


def _kind(
    model: ModelFacts, task: PoolingTask, settings: Mapping[str, Any], ledger: Ledger, *, is_reward: bool
) -> PoolingKind:
    path, kind = "model.pooling.kind", pooling_type(settings)
    if kind == STEP:  # of the rows of all tokens, those of the tag are answered
        return ledger.take(path, SETTINGS, "all")
    if kind is not None:
        if kind not in POOLING_KINDS:
            allowed = ", ".join(each.upper() for each in (*POOLING_KINDS, STEP))
            message = f"pooling_type is {settings['pooling_type']!r}"
            ledger.refuse(f"{SETTINGS}.pooling_type", RULE, message, allowed=allowed, hint="write one of them")
            return "last"
        return ledger.take(path, SETTINGS, kind)
    if _judges_tokens(model):
        return ledger.decide(path, "all", "model", f"{model.architecture} judges each token")
    if is_reward:
        return ledger.take(path, "model.convert", "all", "each token has its reward")
    if task == "embed" and model.sentence is not None and model.sentence.kind is not None:
        return ledger.decide(path, model.sentence.kind, "model", "stated in the checkpoint's files")
    if model.architecture.endswith("ForTokenClassification"):
        return ledger.decide(path, "all", "model", "each token has its class")
    if _is_causal(model.architecture):
        return ledger.decide(path, "last", "model", "the last token of a causal model has seen all others")
    stated = model.config.get("classifier_pooling")
    if task != "embed" and stated in ("cls", "mean"):
        return ledger.decide(path, cast(PoolingKind, stated), "model", "classifier_pooling of config.json")
    if task == "embed":
        return ledger.decide(path, "mean", "model", "sentence-transformers' own choice for a model without its files")
    return ledger.decide(path, "cls", "model", "an encoder's classifier reads the first token")


def _activation(
    model: ModelFacts,
    task: PoolingTask,
    settings: Mapping[str, Any],
    num_labels: int,
    ledger: Ledger,
    *,
    is_reward: bool,
) -> VectorActivation:
    path = "model.pooling.activation"
    for key in ("normalize", "use_activation"):
        if key in settings and not isinstance(settings[key], bool):
            message = f"{key} is {settings[key]!r}; true or false is expected"
            ledger.refuse(f"{SETTINGS}.{key}", RULE, message, allowed="true, false")
    wanted = settings.get("normalize", settings.get("use_activation"))
    if wanted is False:
        return ledger.take(path, SETTINGS, "none")
    if task == "embed":
        if wanted is None and model.sentence is not None and not model.sentence.normalize:
            return ledger.decide(path, "none", "model", "modules.json has no Normalize")
        return ledger.decide(path, "normalize", "model", "vectors of length 1, so that a product is a cosine")
    if is_reward and wanted is None and _judges_tokens(model):
        return ledger.decide(path, "none", "model", "a reward has no bounds")
    if is_reward and wanted is None:
        return ledger.take(path, "model.convert", "none", "a reward has no bounds")
    stated = _stated_activation(model)
    if stated is not None and wanted is None:
        return ledger.decide(path, stated, "model", "stated in the checkpoint's files")
    if num_labels == 1 or model.config.get("problem_type") == "multi_label_classification":
        return ledger.decide(path, "sigmoid", "model", "each label is decided alone")
    return ledger.decide(path, "softmax", "model", "one of several labels holds")


def _judges_tokens(model: ModelFacts) -> bool:
    return model.architecture.endswith((_REWARD, _PROCESS_REWARD))


def _stated_activation(model: ModelFacts) -> VectorActivation | None:
    """Returns what a CrossEncoder states, by the last part of its dotted name."""
    config = model.config
    inner = config.get("sentence_transformers")
    stated = inner.get("activation_fn") if isinstance(inner, Mapping) else None
    name = stated or config.get("sbert_ce_default_activation_function")
    if name is None and model.sentence is not None:
        name = model.sentence.activation
    return _ACTIVATIONS.get(str(name).rpartition(".")[2]) if name else None


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    named = config.get("id2label")
    if isinstance(named, Mapping) and named:
        if not all(str(key).isdecimal() for key in named):
            raise CheckpointError("config.json", "id2label has keys that are no numbers of classes")
        return tuple(str(named[key]) for key in sorted(named, key=int))
    count = config.get("num_labels", 2)
    return tuple(f"LABEL_{index}" for index in range(count if isinstance(count, int) else 2))


def _label_token_ids(
    settings: Mapping[str, Any], model: ModelFacts, task: PoolingTask, ledger: Ledger
) -> tuple[int, ...]:
    """Returns the tokens whose logits are the scores, of which the last one stands for "yes". Those that the checkpoint
    names are not for a spec that asks to embed."""
    key = "returned_token_ids" if pooling_type(settings) == STEP else "label_token_ids"
    ids = settings.get(key, () if task == "embed" else model.label_token_ids)
    vocab_size = model.geometry.vocab_size
    is_list = isinstance(ids, list | tuple) and all(type(each) is int and 0 <= each < vocab_size for each in ids)
    if not is_list or not (ids == () or _is_causal(model.architecture)):
        message = f"{key} is {ids!r}"
        allowed = f"token ids below {vocab_size}, of a model that generates"
        ledger.refuse(f"{SETTINGS}.{key}", RULE, message, allowed=allowed)
        return ()
    return tuple(ids)


def _dimensions(settings: Mapping[str, Any], config: Mapping[str, Any], ledger: Ledger) -> tuple[int, ...] | None:
    """Returns the lengths to which vectors may be cut, none for any length; None if they may not be cut."""
    stated = settings.get("matryoshka_dimensions", config.get("matryoshka_dimensions"))
    if isinstance(stated, list | tuple) and all(type(each) is int and each > 0 for each in stated):
        return tuple(stated)
    if "matryoshka_dimensions" in settings and stated is not True:
        message = f"matryoshka_dimensions is {stated!r}"
        allowed = "a list of lengths, or true for any length"
        ledger.refuse(f"{SETTINGS}.matryoshka_dimensions", RULE, message, allowed=allowed)
    return () if config.get("is_matryoshka") is True or stated is True else None


def _is_causal(architecture: str) -> bool:
    known = ARCHITECTURES.get(architecture)
    return known is not None and known.is_causal
