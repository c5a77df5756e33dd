"""Pass `describe`: the program of the checkpoint, or why this version has none for it."""

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import ModelFacts
from appliance.layers.draft_spec import KeptStates
from appliance.models.describe import Described
from appliance.models.errors import ModelError, Problem
from appliance.plan.context import model_path
from appliance.plan.embeds import FIELD
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger
from appliance.plan.modelling import Modelled
from appliance.plan.types import PoolingPlan

RULE = "plan/family"
_OTHER_MODEL = "choose another checkpoint"


def describe_model(
    inputs: PlanInputs,
    max_model_len: int,
    modelled: Modelled,
    pooling: PoolingPlan | None,
    ledger: Ledger,
    keeps: KeptStates | None = None,
    *,
    takes_embeds: bool = False,
) -> Described:
    """The model's program. What its family cannot express, and a checkpoint of other tensors, is refused; an outline
    then stands for it, as for an architecture that is not in this version, or that modelling code runs."""
    model, programs = inputs.model, inputs.programs
    known = model.known
    if modelled.plan is not None or known is None or known.family is None:
        return programs.outline(model)
    try:
        described, problems = programs.describe(
            model, max_model_len, None if pooling is None else pooling.choice, keeps, takes_embeds=takes_embeds
        )
    except CheckpointError as error:
        ledger.refuse(model_path(inputs.spec), RULE, error.problem, hint=error.hint or _OTHER_MODEL)
        return programs.outline(model)
    except ModelError as error:
        for problem in error.problems:
            _refuse(problem, model, ledger)
        return programs.outline(model)
    place = model_path(inputs.spec)
    hint = _OTHER_MODEL if place == "model.source" else f"remove {place}, which the weights contradict"
    for problem in problems:
        own = problem.hint if place == "model.source" else ""
        ledger.refuse(place, "plan/weights", problem.message, hint=own or hint)
    return described


def _refuse(problem: Problem, model: ModelFacts, ledger: Ledger) -> None:
    """Refuses at the spec's field if that replaced the config's value, else at the source of the model."""
    path, hint = model_path(ledger.loaded.spec), _OTHER_MODEL
    if model.format == "safetensors" and model.quantization is None:
        hint = f"{_OTHER_MODEL}, or try transformers' code: model_impl: transformers"
    if problem.concerns == "context":
        path = "model.max_model_len"
    elif problem.concerns == "embeds":
        path, hint = FIELD, "remove it"
    elif problem.concerns == "windows":
        path = "model.disable_sliding_window"
    elif problem.concerns == "rotary" and ledger.loaded.spec.model.rope_scaling:
        path, hint = "model.rope_scaling", "remove model.rope_scaling, or complete it"
    ledger.refuse(path, RULE, problem.message, allowed=problem.allowed, hint=problem.hint or hint)
