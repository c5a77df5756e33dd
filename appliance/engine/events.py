"""What the loop tells its clients, and how some of it is made."""

from appliance.engine.adapter_changes import Answer
from appliance.engine.adapter_messages import AdaptersServed
from appliance.engine.messages import EngineEvent, ErrorKind, GenerateRequest, UtilityResult
from appliance.engine.processors import ProcessorError, make_processor
from appliance.engine.refusal import Refusal
from appliance.engine.wire import raw

Events = list[tuple[bytes | None, EngineEvent]]  # (client, event); None: every client, and later ones


def adapter_events(answers: list[Answer]) -> Events:
    """Returns the answers to changes of the set of adapters; every client hears of a new set."""
    events: Events = []
    for client, call_id, outcome in answers:
        if isinstance(outcome, AdaptersServed):
            events += [(None, outcome), (client, UtilityResult(call_id=call_id, value=raw(outcome)))]
        else:
            events.append((client, UtilityResult(call_id=call_id, error=outcome)))
    return events


def check_processors(message: GenerateRequest) -> None:
    """Raises Refusal for a logits processor that cannot be made, so that it does not fail within a step."""
    try:
        for call in message.sampling.logits_processors:
            make_processor(call)
    except ProcessorError as error:
        raise Refusal(ErrorKind.INVALID, "logits_processors", f"logits_processors: {error}") from error
