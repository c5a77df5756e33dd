"""The adapters of a request: the one that `model` names, or those that `lora` chooses with their scales."""

import math
from typing import Final, TypedDict

from appliance.plan.types import AdapterPlan
from appliance.program.adapters import stack_problem
from appliance.requests.errors import ApiError, invalid
from appliance.requests.fields import GenerationFields, LoraChoice
from appliance.server.state import ServerState

MAX_SCALE: Final = 100.0


class Chosen(TypedDict):
    """The fields of a TextRequest that say its adapters."""

    adapter: str | None
    adapter_scale: float | None
    stacked: tuple[tuple[str, float | None], ...]


async def choose_adapter(state: ServerState, fields: GenerationFields) -> Chosen:
    """Returns the adapters of a request whose `model` is served. Raises ApiError."""
    named = state.adapter_of(fields.model)
    if not fields.lora:
        return Chosen(adapter=named, adapter_scale=None, stacked=())
    if not state.plan.serving.adapters.request_scale:
        message = "requests may not choose adapters and their scales here; hint: lora.allow_request_scale"
        raise invalid("lora", message, "not_allowed")
    chosen = [(await _name(state, choice, at), _scale(choice, at)) for at, choice in enumerate(fields.lora)]
    names = [name for name, _ in chosen]
    if len({*names}) < len(names):
        raise invalid("lora", "an adapter is named twice", "invalid_value")
    if named is not None and named not in names:
        raise invalid("lora[0].name", f"lora chooses {names[0]!r}, and model names {named!r}", "invalid_value")
    _check_rank(state, names)
    (name, scale), *others = chosen
    return Chosen(adapter=name, adapter_scale=scale, stacked=tuple(others))


def _check_rank(state: ServerState, names: list[str]) -> None:
    """Raises ApiError if adapters together have a higher rank than a slot."""
    adapters = state.plan.adapters
    if adapters is None:
        return
    ranks = [each.rank for each in adapters.served if each.name in names]
    if problem := stack_problem(ranks, adapters.max_rank):
        raise invalid("lora", problem, "invalid_value")


async def _name(state: ServerState, choice: LoraChoice, at: int) -> str:
    served = () if state.plan.adapters is None else state.plan.adapters.served
    if (choice.name is None) == (choice.id is None):
        raise invalid(f"lora[{at}]", "an adapter is chosen by its name or by its id", "invalid_value")
    if choice.id is not None:
        name = _of_id(served, choice.id, at)
    else:
        assert choice.name is not None
        name = choice.name
    if name in state.plan.model.served_names:
        raise invalid(f"lora[{at}].name", f"{name!r} is the base model's name", "invalid_value")
    try:
        await state.find_model(name)
    except ApiError as error:
        error.param = f"lora[{at}].name"
        raise
    return name


def _of_id(served: tuple[AdapterPlan, ...], number: int, at: int) -> str:
    """Returns the name of an adapter by its place in GET /lora-adapters."""
    if not 0 <= number < len(served):
        raise invalid(f"lora[{at}].id", f"there is no adapter {number}; there are {len(served)}", "invalid_value")
    return served[number].name


def _scale(choice: LoraChoice, at: int) -> float | None:
    if choice.scale is not None:
        check_scale(choice.scale, f"lora[{at}].scale")
    return choice.scale


def check_scale(scale: float, param: str) -> None:
    """Raises ApiError for a scale that no adapter may have."""
    if not (math.isfinite(scale) and abs(scale) <= MAX_SCALE):
        message = f"scale is {scale}; it must be from {-MAX_SCALE:g} to {MAX_SCALE:g}"
        raise invalid(param, message, "invalid_value")
