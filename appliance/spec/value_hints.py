"""Hints for values that a field does not accept."""

import re
from typing import Any, get_args

from appliance.base import units
from appliance.spec.suggest import near_value
from appliance.spec.tree import Field, words_of

_YES = {"yes", "on", "y", "1", "true"}
_NO = {"no", "off", "n", "0", "false"}
_NO_DEFAULT = ("", "required", "null", "[]", "{}", '""')


def value_hint(found: Field, value: Any, kind: str, allowed: str) -> str:
    """Returns a hint, which is never empty. kind: pydantic's error type. allowed: the allowed values in words."""
    if value is None:
        return "give it a value, or remove the key to get its default"
    if kind == "list_type" and not isinstance(value, dict):
        return f"write a list: [{value}]"
    special = _text_hint(found, value, allowed) if isinstance(value, str) else _number_hint(value, kind, allowed)
    return special or _default_hint(found)


def _text_hint(found: Field, text: str, allowed: str) -> str:
    if "true or false" in allowed and text.lower() in _YES | _NO:
        return f"write {'true' if text.lower() in _YES else 'false'}, without quotes"
    digits = re.sub(r"[_,' ]", "", text)
    if digits.isdigit() and re.search(r"integer|number|port", allowed) and "unit" not in allowed:
        if len(digits) > 19:
            return "write a number of at most 64 bits"
        return f"write {digits}, without quotes or separators"
    choices = choices_of(found.info.annotation)
    if near := near_value(text, choices):
        return f"did you mean {near!r}?"
    if len(choices) == 1 and choices[0] != "auto":
        return f"write {choices[0]}"
    return _form_hint(text, allowed)


def _form_hint(text: str, allowed: str) -> str:
    number = re.match(r"\d+(\.\d+)?", text)
    if units.COUNT_FORM in allowed and number:
        return f"write {number[0]}k for thousands, {number[0]}K for 1024s"
    if units.SIZE_FORM in allowed and number:
        return f"write {number[0]}GiB (2^30 bytes each), {number[0]}GB (10^9), {number[0]}MiB ..."
    if units.DURATION_FORM in allowed and number:
        return f"write {number[0]}s, or {number[0]}ms"
    if "host name label" in allowed and (label := re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")):
        return f"write {label[:63]}"
    if "SHA-256" in allowed:
        return "`sha256sum FILE` prints it"
    if "http://" in allowed:
        return f"write http://{text}"
    if "dotted path" in allowed and text.isidentifier():
        return f"write your_package.your_module.{text}"
    if allowed.startswith("sha256:") and re.fullmatch(r"[0-9a-f]{64}", text):
        return f"write sha256:{text}"
    return ""


def _number_hint(value: Any, kind: str, allowed: str) -> str:
    if kind == "string_type" and not isinstance(value, list):
        return f"put it in quotes: '{str(value).lower() if isinstance(value, bool) else value}'"
    if isinstance(value, float) and value.is_integer() and "integer" in allowed:
        return f"write {int(value)}"
    if "at most 1" in allowed and isinstance(value, int | float) and 1 < value <= 100:
        return f"write {value / 100:g} for {value:g} percent"
    if isinstance(value, int) and not isinstance(value, bool):
        return _form_hint(str(value), allowed) if "unit" in allowed else ""
    return ""


def _default_hint(found: Field) -> str:
    """Returns the default, or else the field's description."""
    return found.doc.doc if found.default_text in _NO_DEFAULT else f"default: {found.default_text}"


def choices_of(annotation: Any) -> list[object]:
    """Returns the literal values anywhere in a type."""
    values: list[object] = []
    for part in get_args(annotation):
        if isinstance(part, str | int):
            values.append(part)
        else:
            values += choices_of(part)
    return values


def item_words(found: Field, is_item: bool) -> str:
    """Returns the allowed values of the field, or of an item of a list of scalars, in words."""
    if is_item and found.is_list and found.child is None:
        (item,) = get_args(found.info.annotation)
        return words_of(item)
    return found.allowed
