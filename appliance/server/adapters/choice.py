"""The adapter of a request: the one that `model` names, or that `lora` chooses with a scale."""

import math
from typing import Final, TypedDict

from appliance.plan.types import AdapterPlan
from appliance.server.http.errors import ApiError, invalid
from appliance.server.requests.fields import GenerationFields, LoraChoice
from appliance.server.state import ServerState

MAX_SCALE: Final = 100.0


class Chosen(TypedDict):
    """The fields of a TextRequest that say its adapter."""

    adapter: str | None
    adapter_scale: float | None


async def choose_adapter(state: ServerState, fields: GenerationFields) -> Chosen:
    """Returns the adapter of a request whose `model` is served. Raises ApiError."""
    named = state.adapter_of(fields.model)
    if not fields.lora:
        return Chosen(adapter=named, adapter_scale=None)
    if not state.plan.serving.adapters.request_scale:
        message = "requests may not choose scales of adapters here; hint: lora.allow_request_scale"
        raise invalid("lora", message, "not_allowed")
    if len(fields.lora) > 1:
        message = f"lora names {len(fields.lora)} adapters, and a request has one in this version"
        raise invalid("lora", message, "unsupported_value")
    [choice] = fields.lora
    name = await _name(state, choice)
    if named not in (None, name):
        raise invalid("lora[0].name", f"lora chooses {name!r}, and model names {named!r}", "invalid_value")
    return Chosen(adapter=name, adapter_scale=_scale(choice))


async def _name(state: ServerState, choice: LoraChoice) -> str:
    served = () if state.plan.adapters is None else state.plan.adapters.served
    if (choice.name is None) == (choice.id is None):
        raise invalid("lora[0]", "an adapter is chosen by its name or by its id", "invalid_value")
    if choice.id is not None:
        name = _of_id(served, choice.id)
    else:
        assert choice.name is not None
        name = choice.name
    if name in state.plan.model.served_names:
        raise invalid("lora[0].name", f"{name!r} is the base model's name", "invalid_value")
    try:
        await state.find_model(name)
    except ApiError as error:
        error.param = "lora[0].name"
        raise
    return name


def _of_id(served: tuple[AdapterPlan, ...], number: int) -> str:
    """Returns the name of an adapter by its place in GET /lora-adapters."""
    if not 0 <= number < len(served):
        raise invalid("lora[0].id", f"there is no adapter {number}; there are {len(served)}", "invalid_value")
    return served[number].name


def _scale(choice: LoraChoice) -> float | None:
    if choice.scale is not None:
        check_scale(choice.scale, "lora[0].scale")
    return choice.scale


def check_scale(scale: float, param: str) -> None:
    """Raises ApiError for a scale that no adapter may have."""
    if not (math.isfinite(scale) and abs(scale) <= MAX_SCALE):
        message = f"scale is {scale}; it must be from {-MAX_SCALE:g} to {MAX_SCALE:g}"
        raise invalid(param, message, "invalid_value")
