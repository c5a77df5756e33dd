"""Fills in `${env:NAME}`, `${env:NAME:?message}` and `${file:path}` in values; `$${` is a plain `${`."""

import re
from collections.abc import Mapping
from pathlib import Path

from appliance.base.texts import NotUtf8Error, utf8_text
from appliance.spec.document import Interpolate, InterpolationError

FORMS = "${env:NAME}, ${env:NAME:?message}, ${file:path}"
MAX_FILE_BYTES = 64 * 1024

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}?")
_ENV = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)(?::\?(.*))?")


def interpolator(environ: Mapping[str, str], folder: Path) -> Interpolate:
    """Returns a function that fills in references; relative files are below `folder`, the folder of the spec."""

    def fill(text: str) -> str:
        return _REFERENCE.sub(lambda matched: _filled(matched, environ, folder), text)

    return fill


def referenced_variables(text: str) -> tuple[str, ...]:
    """Returns the environment variables that a spec's text names, each once, in order."""
    bodies = (matched[1] for matched in _REFERENCE.finditer(text) if matched[1])
    return tuple(dict.fromkeys(env[1] for body in bodies if (env := _ENV.fullmatch(body))))


def _filled(matched: re.Match[str], environ: Mapping[str, str], folder: Path) -> str:
    if matched[0] == "$${":
        return "${"
    body = matched[1]
    if not matched[0].endswith("}"):
        raise InterpolationError("interpolation/form", "a ${ without its }", f"write {FORMS}; $${{ is a plain ${{")
    if env := _ENV.fullmatch(body):
        return _variable(env[1], env[2], environ)
    if body.startswith("file:") and len(body) > len("file:"):
        return _file(body.removeprefix("file:"), folder)
    hint = f"write ${{env:{body}}}" if body.isidentifier() else f"write {FORMS}"
    raise InterpolationError("interpolation/form", f"{matched[0]!r} is no known reference", hint)


def _variable(name: str, message: str | None, environ: Mapping[str, str]) -> str:
    value = environ.get(name)
    if value is None or (message is not None and not value):
        text = f"the environment variable {name} is not set"
        raise InterpolationError("interpolation/env", message or text, f"export {name}=...")
    return value


def _file(name: str, folder: Path) -> str:
    path = folder / name
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise InterpolationError("interpolation/file", f"{name} is larger than {MAX_FILE_BYTES // 1024} KiB")
        return utf8_text(data, name).rstrip("\r\n")
    except OSError as error:
        reason = error.strerror or "it cannot be read"
        hint = "a relative path starts at the folder of the spec"
        raise InterpolationError("interpolation/file", f"cannot read {name}: {reason}", hint) from None
    except NotUtf8Error as error:
        raise InterpolationError("interpolation/file", str(error), error.hint or "") from None
