"""Constraints that end the process in which the library compiles them, or hold it for long."""

import json
from typing import Any

from .walks import constraint

CHAIN = 2500


def chain_of_rules(arrow: str, first: str) -> str:
    links = [f"r{number} {arrow} r{number + 1}" for number in range(CHAIN)]
    return "\n".join([f"{first} {arrow} r0", *links, f'r{CHAIN} {arrow} "a"', ""])


def chain_of_references() -> str:
    links: dict[str, Any] = {f"d{number}": {"$ref": f"#/$defs/d{number + 1}"} for number in range(CHAIN)}
    return json.dumps({"$ref": "#/$defs/d0", "$defs": {**links, f"d{CHAIN}": {"type": "null"}}})


def object_of(count: int) -> str:
    properties = {f"p{number}": {"type": "boolean"} for number in range(count)}
    return json.dumps({"type": "object", "properties": properties, "additionalProperties": False})


ENDING = {
    "chained GBNF rules": constraint("gbnf", chain_of_rules("::=", "root")),
    "chained Lark rules": constraint("lark", chain_of_rules(":", "start")),
    "chained terminals": constraint("lark", chain_of_rules(":", "start").replace("r", "R").replace("staRt", "start")),
    "chained references": constraint("json_schema", chain_of_references()),
    "a huge divisor": constraint("json_schema", '{"type": "integer", "multipleOf": 2147483648}'),
}
HEAVY = constraint("json_schema", object_of(6000))  # seconds of processor time
