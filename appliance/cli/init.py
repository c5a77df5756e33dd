"""`appliance init`: writes a commented spec to start from."""

import re
import sys
from pathlib import Path

from appliance.base.errors import ExitCode
from appliance.cli.arguments.spec import InitArguments
from appliance.spec.schema import FILE_NAME, schema_text
from appliance.spec.starter import SOURCE, starter_text


def run(arguments: InitArguments) -> int:
    """Writes a spec, and on request the JSON Schema beside it for editors. Returns 2 if the file exists."""
    path, source = arguments.path, arguments.source or SOURCE
    file = Path(path)
    if file.exists() and not arguments.force:
        print(f"error: {path} is there already\n  hint: --force replaces it", file=sys.stderr)
        return ExitCode.INVALID
    text = starter_text(path, arguments.name or _name_of(source), source)
    file.parent.mkdir(parents=True, exist_ok=True)
    if arguments.with_schema:
        file.with_name(FILE_NAME).write_text(schema_text(), encoding="utf-8")
        text = f"# yaml-language-server: $schema=./{FILE_NAME}\n{text}"
    file.write_text(text, encoding="utf-8")
    print(f"wrote {path}; next: appliance validate {path}")
    return ExitCode.OK


def _name_of(source: str) -> str:
    """Makes a deployment's name from the last part of a source."""
    last = source.rstrip("/").rsplit("/", 1)[-1].removesuffix(".gguf").lower()
    return re.sub(r"[^a-z0-9]+", "-", last).strip("-")[:63].strip("-") or "model"
