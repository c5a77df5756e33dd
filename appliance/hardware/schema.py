"""The JSON Schemas of hardware facts and profiles, as committed in schemas/."""

import json

import msgspec

from appliance.hardware.facts import HardwareFacts
from appliance.hardware.profile import OPERATORS, Profile


def schema_texts() -> dict[str, str]:
    """The text of each schema by its file name."""
    profile = msgspec.json.schema(Profile)
    profile["$defs"]["Predicate"]["oneOf"] = [{"required": [operator]} for operator in OPERATORS]
    return {
        "hardware.v1.json": _text("HardwareFacts", msgspec.json.schema(HardwareFacts)),
        "profile.v1.json": _text("Profile", profile),
    }


def _text(title: str, schema: dict[str, object]) -> str:
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **schema}
    return json.dumps(document, indent=2) + "\n"
