"""`--with field=value`: a change of one scenario field, typed by the scenario itself."""

from collections.abc import Sequence
from typing import Any

import msgspec

from appliance.base.errors import ApplianceError
from appliance.bench.scenario import Scenario


def parse_changes(changes: Sequence[str]) -> dict[str, Any]:
    """Raises ApplianceError for an unknown field or a value of another type."""
    types = {info.name: info.type for info in msgspec.structs.fields(Scenario)}
    parsed = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or name not in types:
            raise ApplianceError(f"--with {change}: not a field of a scenario", hint=f"one of {', '.join(types)}")
        try:
            parsed[name] = msgspec.convert(text, types[name], strict=False)
        except msgspec.ValidationError as error:
            raise ApplianceError(f"--with {change}: {error}") from error
    return parsed
