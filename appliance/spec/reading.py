"""Reads a spec's file as text."""

from pathlib import Path

from appliance.base.diagnostics import Diagnostic
from appliance.base.errors import SpecError
from appliance.base.texts import NotUtf8Error, utf8_text
from appliance.spec.nodes import MAX_BYTES


def read_text(file: Path, name: str) -> str:
    """Reads UTF-8 without a byte order mark. Raises SpecError, which calls the file `name`."""
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 2)
        return utf8_text(data, "the file")
    except OSError as error:
        reason = error.strerror or "it cannot be read"
        found = Diagnostic(rule="file/read", message=f"cannot read the file: {reason}", file=name)
        raise SpecError([found]) from None
    except NotUtf8Error as error:
        before = data[: error.start].decode("utf-8-sig", "replace")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        hint = error.hint or ""
        found = Diagnostic(rule="file/encoding", message=str(error), file=name, line=line, column=column, hint=hint)
        raise SpecError([found]) from None
