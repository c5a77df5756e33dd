"""The JSON Schema of a plan, as committed in schemas/."""

import json

import msgspec

from appliance.plan.types import EnginePlan

FILE_NAME = "plan.v1.json"


def schema_text() -> str:
    schema = msgspec.json.schema(EnginePlan)
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "EnginePlan", **schema}
    return json.dumps(schema, indent=2) + "\n"
