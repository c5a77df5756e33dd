"""What the tests of imports ask of a spec that was made."""

import json
from typing import Any

from appliance.base.errors import SpecError
from appliance.importing.draft import Imported
from appliance.spec.loader import load_text

VARIABLES = {"MODEL": "some/model", "HOME": "/home/someone", "HF_TOKEN": "hf_x", "MODEL_SOURCE": "./m.gguf"}


def at(document: dict[str, Any], path: str) -> Any:
    for part in path.split("."):
        document = document[part]
    return document


def errors_of(document: dict[str, Any]) -> list[str]:
    try:
        load_text(json.dumps(document), environ=VARIABLES)
    except SpecError as error:
        return [f"{found.path}: {found.message}" for found in error.diagnostics]
    return []


def told(found: Imported) -> str:
    """Everything that an import says beside the spec, and the spec."""
    listed = [f"{each.origin} | {each.reason}" for each in found.unplaced]
    return "\n".join([*found.notes, *listed, *found.placed.values(), json.dumps(found.document)])


def origins(found: Imported) -> list[str]:
    return [each.origin for each in found.unplaced]
