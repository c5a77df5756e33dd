"""Writes the schemas of this area anew: python tests/hardware/update.py"""

from pathlib import Path

from appliance.hardware.schema import schema_texts

SCHEMAS = Path(__file__).parents[2] / "schemas"

if __name__ == "__main__":
    for name, text in schema_texts().items():
        (SCHEMAS / name).write_text(text)
