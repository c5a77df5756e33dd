"""How the back-end is told to write JSON."""

from typing import Any

from appliance.engine.messages import Constraint

# Without u: an escaped key ("\u0061" for "a") would pass as an additional property and slip out of its own schema.
# Every character but a few control characters can be said without it.
ESCAPES = 'nrbtf\\"'


def json_options(constraint: Constraint) -> dict[str, Any]:
    """The library's x-guidance of a constraint."""
    options: dict[str, Any] = {"json_allowed_escapes": ESCAPES}
    if constraint.whitespace == "":
        options["whitespace_flexible"] = False
    elif constraint.whitespace is not None:
        options["whitespace_pattern"] = constraint.whitespace
    return options


def with_options(schema: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The schema with our options at its top, where the library looks for them; they win over the request's."""
    if schema is True:
        return {"x-guidance": options}
    if schema is False:
        return {"x-guidance": options, "enum": []}
    return {**schema, "x-guidance": options}
