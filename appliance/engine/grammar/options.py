"""The back-end's options for writing JSON."""

from typing import Any

from appliance.engine.messages import Constraint

# White space in JSON, if the request does not say. It allows pretty printing, but not endless white space.
GAP = r"[ \n\r\t]{1,64}"
# Without u: an escaped key ("\u0061" for "a") would pass as an additional property and slip out of its own schema.
# Every character but a few control characters can be written without it.
ESCAPES = 'nrbtf\\"'


def json_options(constraint: Constraint) -> dict[str, Any]:
    """Returns the library's `x-guidance` options for a constraint."""
    options: dict[str, Any] = {"json_allowed_escapes": ESCAPES}
    if constraint.whitespace == "":
        options["whitespace_flexible"] = False
    else:
        options["whitespace_pattern"] = GAP if constraint.whitespace is None else constraint.whitespace
    return options


def with_options(schema: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema with our options at its top, where the library reads them; they replace the request's.

    `$schema` is left out: the dialect is always that of the module `schema`.
    """
    if schema is True:
        return {"x-guidance": options}
    if schema is False:
        return {"x-guidance": options, "enum": []}
    return {**{key: value for key, value in schema.items() if key != "$schema"}, "x-guidance": options}
