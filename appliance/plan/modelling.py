"""Pass `modelling`: whether our own decoder runs the model, or modelling code of transformers or of the checkpoint."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from appliance.catalog.formats import LOAD_QUANTIZATIONS
from appliance.checkpoint.config import normalize_config, text_config
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.modelling import Modelling, ModellingCode
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.plan.types import ModellingPlan

RULE = "plan/modelling"
PATH = "model.modelling"
COSTS = (
    "it costs the Python and torch of every layer in each step, and has no packed weights, no integer products"
    " and no screen; rows round by their neighbours in a step"
)
# Keys of a config that ask for what the code does beside keys and values of the config's heads.
_BEYOND = {
    "attention_chunk_size": "attention in chunks",
    "num_kv_shared_layers": "layers that share caches",
}
_KINDS = ("full_attention", "sliding_attention")  # others keep a state, or see otherwise than by a window
_MOVING_ROPES = ("dynamic", "longrope")
_CAUSAL = ("ForCausalLM", "LMHeadModel")


class Obstacle(NamedTuple):
    """Why modelling code cannot run the checkpoint here. path: of the spec's field to change."""

    path: str
    message: str
    hint: str = "choose another checkpoint"


class Modelled(NamedTuple):
    """plan: None if our own decoder runs the model, or nothing can. obstacles: why no other code can."""

    plan: ModellingPlan | None = None
    obstacles: tuple[Obstacle, ...] = ()


def plan_modelling(inputs: PlanInputs, ledger: Ledger) -> Modelled:
    """The spec's choice, else our own decoder where it knows the architecture. Refuses the spec's choice where it
    cannot be; what `auto` cannot run is refused by the pass `model`."""
    wanted, path = inputs.spec.model.model_impl, "model.model_impl"
    known = inputs.model.known
    if wanted == "appliance" or (wanted == AUTO and known is not None and known.family is not None):
        _refuse_code_revision(inputs, ledger)
        if wanted != AUTO or inputs.spec.model.trust_remote_code:
            ledger.take(PATH, path, None, "our own decoder runs the model, and no code that comes with the checkpoint")
        return Modelled()
    found = inputs.files.modelling or Modelling(version=None)
    code = _code(inputs, found)
    obstacles = tuple(_obstacles(inputs, found, code))
    if obstacles or code is None:
        if wanted != AUTO:
            for each in obstacles:
                ledger.refuse(each.path, RULE, each.message, hint=each.hint)
        return Modelled(None, obstacles)
    if code.origin != "checkpoint":
        _refuse_code_revision(inputs, ledger)
    reason = f"{_whose(code, found)} runs {inputs.model.architecture}: {COSTS}"
    if wanted == AUTO:
        ledger.warnings.append(f"we have no decoder of our own for it: {reason}")
    source = "model" if wanted == AUTO else ledger.source_of(path)
    ledger.decide(PATH, code.model_class, source, reason)
    return Modelled(_plan(inputs, found, code))


def _plan(inputs: PlanInputs, found: Modelling, code: ModellingCode) -> ModellingPlan:
    is_own = code.origin == "checkpoint"
    return ModellingPlan(
        origin=code.origin,
        transformers_version=found.version or "",
        model_class=code.model_class,
        config_class=code.config_class,
        code_path=code.folder if is_own else None,
        code_revision=inputs.spec.model.code_revision if is_own else None,
        files=code.files,
    )


def _whose(code: ModellingCode, found: Modelling) -> str:
    if code.origin == "transformers":
        return f"the code of transformers {found.version}"
    return f"code that comes with the checkpoint ({', '.join(file.name for file in code.files)})"


def _code(inputs: PlanInputs, found: Modelling) -> ModellingCode | None:
    """The checkpoint's own code where the spec trusts it, else that of transformers."""
    if found.of_checkpoint is not None and inputs.spec.model.trust_remote_code:
        return found.of_checkpoint
    return found.of_transformers


def _obstacles(inputs: PlanInputs, found: Modelling, code: ModellingCode | None) -> Iterator[Obstacle]:
    name = inputs.model.architecture
    if code is None:
        yield _no_code(name, found)
    elif code.origin == "transformers" and not name.endswith(_CAUSAL):
        yield Obstacle("model.source", f"{name} is no causal language model")
    for problem in code.obstacles if code is not None else ():
        yield Obstacle("model.source", f"{name}: {problem}")
    yield from _of_config(inputs)
    yield from _of_weights(inputs)
    yield from _of_machine(inputs)


def _no_code(name: str, found: Modelling) -> Obstacle:
    if found.of_checkpoint is not None:
        files = ", ".join(file.name for file in found.of_checkpoint.files) or found.of_checkpoint.model_class
        message = f"{name} needs Python code that comes with the checkpoint ({files}), which nothing allows to run"
        return Obstacle("model.trust_remote_code", message, "read that code, then write trust_remote_code: true")
    if found.version is None:
        message = "transformers is not installed, whose modelling code would run it"
        return Obstacle("model.model_impl", message, "pip install 'appliance[torch]'")
    return Obstacle("model.source", f"transformers {found.version} has no class {name}", "install a version that has")


def _of_config(inputs: PlanInputs) -> Iterator[Obstacle]:
    config = text_config(inputs.model.config)
    if inputs.model.config.get("is_encoder_decoder"):
        yield Obstacle("model.source", "the model is an encoder-decoder")
    for key, what in _BEYOND.items():
        if config.get(key):
            yield Obstacle("model.source", f"{key} in the checkpoint's config asks for {what}")
    try:
        layers = normalize_config(inputs.model.config).layers
    except CheckpointError as error:
        yield Obstacle("model.source", error.problem)
        return
    for kind, count in Counter(layer.kind for layer in layers if layer.kind not in _KINDS).items():
        message = f"{count} of {len(layers)} layers are of kind {kind}; modelling code runs {' and '.join(_KINDS)}"
        yield Obstacle("model.source", message)
    ropes = {layer.rope.kind for layer in layers if layer.rope is not None}
    for kind in sorted(ropes.intersection(_MOVING_ROPES)):
        path = "model.rope_scaling" if inputs.spec.model.rope_scaling else "model.source"
        yield Obstacle(path, f"rotary positions of kind {kind} depend on the longest sequence of a step")


def _of_weights(inputs: PlanInputs) -> Iterator[Obstacle]:
    model, wanted = inputs.model, inputs.spec.model.quantization
    if model.format != "safetensors":
        yield Obstacle("model.source", f"the weights are {model.format}, and modelling code reads safetensors")
    elif model.quantization is not None:
        yield Obstacle("model.source", f"{model.quantization} weights need that library's own kernels")
    if wanted in LOAD_QUANTIZATIONS:
        message = f"{wanted} is made for our own kernels, and modelling code computes in floats"
        yield Obstacle("model.quantization", message, "write quantization: auto")


def _of_machine(inputs: PlanInputs) -> Iterator[Obstacle]:
    spec, device = inputs.spec.parallelism, inputs.profile.device
    if device != "cpu":
        yield Obstacle("hardware.profile", f"modelling code runs on cpu in this version, not on {device}")
    for name, ranks in (("tensor", spec.tensor), ("pipeline", spec.pipeline)):
        if ranks > 1:
            yield Obstacle(f"parallelism.{name}", "modelling code is not cut into ranks", f"write {name}: 1")


def _refuse_code_revision(inputs: PlanInputs, ledger: Ledger) -> None:
    if inputs.spec.model.code_revision is not None:
        message = "model.code_revision has no use: no code that comes with the checkpoint runs"
        ledger.refuse("model.code_revision", RULE, message, hint="remove model.code_revision")
