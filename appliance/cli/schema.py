"""`appliance schema`: prints the JSON Schema of a deployment; writes or compares all schemas and reference pages."""

import sys
from collections.abc import Mapping
from pathlib import Path

from appliance.base.errors import ExitCode
from appliance.program.header import header_text
from appliance.spec.reference import reference_text, refused_text
from appliance.spec.schema import schema_text

SCHEMA_PATH = "schemas/deployment.v1.json"
METRICS_PATH = "schemas/metrics.v1.json"
REFERENCE_PATH = "docs/reference/spec.md"
REFUSED_PATH = "docs/reference/not-in-this-version.md"
ENVIRONMENT_PATH = "docs/reference/environment.md"
MODELS_PATH = "docs/reference/models.md"
OPERATORS_PATH = "kernels/include/appliance_operators.h"


def run(check: bool = False, write: bool = False, root: str = ".") -> int:
    """Prints the schema; or writes all generated files below `root`; or returns 2 if one of them is stale."""
    if not check and not write:
        print(schema_text(), end="")
        return ExitCode.OK
    texts = generated()
    if write:
        for name, text in texts.items():
            path = Path(root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return ExitCode.OK
    stale = [name for name, text in texts.items() if _committed(Path(root, name)) != text]
    for name in stale:
        print(f"error: {name} is stale\n  hint: run `appliance schema --write` and commit it", file=sys.stderr)
    return ExitCode.INVALID if stale else ExitCode.OK


def generated() -> Mapping[str, str]:
    """Returns the text of each generated file, by its path in the repository."""
    # What prints the one schema needs none of these.
    from appliance.cli.environment_page import environment_text
    from appliance.cli.models_page import models_text
    from appliance.hardware.schema import schema_texts
    from appliance.plan import schema as plan_schema
    from appliance.service.metrics import schema_text as metrics_text

    return {
        **{f"schemas/{name}": text for name, text in schema_texts().items()},
        f"schemas/{plan_schema.FILE_NAME}": plan_schema.schema_text(),
        METRICS_PATH: metrics_text(),
        SCHEMA_PATH: schema_text(),
        REFERENCE_PATH: reference_text(),
        REFUSED_PATH: refused_text(),
        ENVIRONMENT_PATH: environment_text(),
        MODELS_PATH: models_text(),
        OPERATORS_PATH: header_text(),
    }


def _committed(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
