"""Converts a section to JSON data without pydantic's serializers, as building those is slower than making a plan."""

from typing import Any

from pydantic import SecretStr

from appliance.spec.fields import Section


def as_data(value: Any) -> Any:
    """Returns the same as `model_dump(mode="json")`; a secret becomes its mask."""
    if isinstance(value, Section):
        return {name: as_data(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {key: as_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_data(item) for item in value]
    return str(value) if isinstance(value, SecretStr) else value
