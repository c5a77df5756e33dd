"""Checks types section by section, so that pydantic builds validators only for the sections in the file."""

from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from appliance.spec.deployment import DeploymentSpec, SpecHead
from appliance.spec.fields import Section
from appliance.spec.tree import child_section


def validate(data: dict[str, Any]) -> tuple[DeploymentSpec | None, list[ErrorDetails]]:
    """Returns the spec, or the errors that DeploymentSpec.model_validate would find."""
    head = {name: value for name, value in data.items() if name in SpecHead.model_fields}
    values, errors = _checked(SpecHead, head, ())
    found = {name: getattr(values, name) for name in SpecHead.model_fields} if values is not None else {}
    for name, value in data.items():
        if name in head:
            continue
        if name not in DeploymentSpec.model_fields:
            errors.append(_error("extra_forbidden", name, value))
            continue
        found[name], wrong = _section(name, value)
        errors += wrong
    if "model" not in data:
        errors.append(_error("missing", "model", data))
    return (None if errors else DeploymentSpec.model_construct(set(data), **found)), errors


def _section(name: str, value: Any) -> tuple[Section | None, list[ErrorDetails]]:
    info = DeploymentSpec.model_fields[name]
    section = child_section(info)
    assert section is not None
    if value is None and type(None) in get_args(info.annotation):
        return None, []
    return _checked(section, value, (name,))


def _checked(section: type[Section], value: Any, place: tuple[str, ...]) -> tuple[Section | None, list[ErrorDetails]]:
    try:
        return section.model_validate(value), []
    except ValidationError as error:
        errors = error.errors(include_url=False)
        for each in errors:
            each["loc"] = place + each["loc"]
        return None, errors


def _error(kind: str, name: str, value: Any) -> ErrorDetails:
    return {"type": kind, "loc": (name,), "msg": kind, "input": value}
