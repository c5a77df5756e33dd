"""Generates the C enumeration of the operators from their records."""

from appliance.program.operators import OPERATORS

_HEAD = """\
/* Generated from the records in appliance/program/operators.py: `appliance schema --write`. Do not edit. */
#ifndef APPLIANCE_OPERATORS_H
#define APPLIANCE_OPERATORS_H

typedef enum {
"""
_TAIL = """\
} appl_operator_kind;

#endif
"""


def header_text() -> str:
    """Returns the text of kernels/include/appliance_operators.h, as it is committed."""
    rows = [(f"APPL_OP_{op.label().upper()} = {number},", f"/* {op.doc} */") for number, op in enumerate(OPERATORS)]
    width = max(len(name) for name, _ in rows)
    lines = "".join(f"  {name:<{width}} {comment}\n" for name, comment in rows)
    return f"{_HEAD}{lines}  APPL_OP_COUNT = {len(OPERATORS)},\n{_TAIL}"
