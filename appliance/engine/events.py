"""What the loop tells its clients, and how some of it is made."""

from appliance.engine.adapter_changes import Answer
from appliance.engine.adapter_messages import AdaptersServed
from appliance.engine.messages import (
    EngineEvent,
    UtilityResult,
)
from appliance.engine.weight_changes import Answer as WeightAnswer
from appliance.engine.wire import raw

Call = tuple[bytes, str]  # (client, call id)
Events = list[tuple[bytes | None, EngineEvent]]  # (client, event); None: every client, and later ones


def answer(call: Call, value: object) -> Events:
    """Returns the answer to a call."""
    client, call_id = call
    return [(client, UtilityResult(call_id=call_id, value=raw(value)))]


def refusal(call: Call, reason: str) -> Events:
    """Returns why a call was not carried out."""
    client, call_id = call
    return [(client, UtilityResult(call_id=call_id, error=reason))]


def adapter_events(answers: list[Answer]) -> Events:
    """Returns the answers to changes of the set of adapters; every client hears of a new set."""
    events: Events = []
    for client, call_id, outcome in answers:
        if isinstance(outcome, AdaptersServed):
            events += [(None, outcome), (client, UtilityResult(call_id=call_id, value=raw(outcome)))]
        else:
            events.append((client, UtilityResult(call_id=call_id, error=outcome)))
    return events


def weight_events(answers: list[WeightAnswer]) -> Events:
    """Returns the answers to changes of the weights."""
    return [
        (client, UtilityResult(call_id=call_id, error=outcome))
        if isinstance(outcome, str)
        else (client, UtilityResult(call_id=call_id, value=raw(outcome)))
        for client, call_id, outcome in answers
    ]
