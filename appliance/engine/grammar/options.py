"""How the back-end is told to write JSON."""

from typing import Any

from appliance.engine.messages import Constraint

# A gap of JSON where the request does not say. Pretty printing fits; white space without end does not.
GAP = r"[ \n\r\t]{1,64}"
# Without u: an escaped key ("\u0061" for "a") would pass as an additional property and slip out of its own schema.
# Every character but a few control characters can be said without it.
ESCAPES = 'nrbtf\\"'


def json_options(constraint: Constraint) -> dict[str, Any]:
    """The library's x-guidance of a constraint."""
    options: dict[str, Any] = {"json_allowed_escapes": ESCAPES}
    if constraint.whitespace == "":
        options["whitespace_flexible"] = False
    else:
        options["whitespace_pattern"] = GAP if constraint.whitespace is None else constraint.whitespace
    return options


def with_options(schema: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The schema with our options at its top, where the library looks for them; they win over the request's.

    It goes without `$schema`: the dialect is always that of `schema`.
    """
    if schema is True:
        return {"x-guidance": options}
    if schema is False:
        return {"x-guidance": options, "enum": []}
    return {**{key: value for key, value in schema.items() if key != "$schema"}, "x-guidance": options}
