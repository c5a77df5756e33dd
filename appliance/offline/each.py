"""Arguments that are one for all prompts, or one for each."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from appliance.offline.errors import InvalidRequestError
from appliance.offline.params import SamplingParams
from appliance.plan.types import EnginePlan

T = TypeVar("T")


def one_each(name: str, given: T | Sequence[T], count: int) -> Sequence[T]:
    """Returns as many values as there are prompts. Raises InvalidRequestError for another number of them."""
    if not isinstance(given, list | tuple):
        return [cast(T, given)] * count
    if len(given) != count:
        raise InvalidRequestError(f"{name} has {len(given)} values for {count} prompts", param=name)
    return given


def conversations(messages: Any) -> list[Any]:
    """Returns the conversations of a call: one list of messages, or several. Raises InvalidRequestError."""
    if not isinstance(messages, list | tuple) or not messages:
        raise InvalidRequestError("messages is a list of messages, or a list of such lists", param="messages")
    return [messages] if isinstance(messages[0], Mapping) else list(messages)


def default_sampling(plan: EnginePlan) -> SamplingParams:
    """Returns the model's own sampling parameters, and vLLM's where it has none."""
    return SamplingParams.from_optional(**plan.model.default_sampling)
