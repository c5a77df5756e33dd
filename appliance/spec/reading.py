"""A spec's file as text."""

from pathlib import Path

from appliance.base.diagnostics import Diagnostic
from appliance.base.errors import SpecError
from appliance.spec.nodes import MAX_BYTES


def read_text(file: Path, name: str) -> str:
    """UTF-8, of which a byte order mark is no part. Raises SpecError, which calls the file `name`."""
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 2)
        return data.decode("utf-8-sig")
    except OSError as error:
        reason = error.strerror or "it cannot be read"
        found = Diagnostic(rule="file/read", message=f"cannot read the file: {reason}", file=name)
        raise SpecError([found]) from None
    except UnicodeDecodeError as error:
        before = error.object[: error.start].decode("utf-8", "replace")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        message = "the file is not UTF-8 text"
        hint = "save it as UTF-8"
        found = Diagnostic(rule="file/encoding", message=message, file=name, line=line, column=column, hint=hint)
        raise SpecError([found]) from None
