"""`appliance validate`: is a spec right, as far as the spec alone can tell."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from appliance.base.diagnostics import RENDERERS, Diagnostic, has_errors
from appliance.base.errors import ExitCode, SpecError
from appliance.spec.compose import included_files
from appliance.spec.loader import load_spec

SUFFIXES = (".yaml", ".yml")


def run(paths: Sequence[str], form: str = "text", overrides: Sequence[str] = ()) -> int:
    """Checks files, and the YAML files below folders. `form` is text, json or github. 0, or 2 when one is wrong.

    Of a folder, a file that another includes is checked with that one.
    """
    found: list[Diagnostic] = []
    count = 0
    for file in _files(paths):
        count += 1
        found += _check(file, overrides)
    if count == 0:
        found.append(Diagnostic(rule="file/read", message="no .yaml file here", file=", ".join(paths)))
    if found or form == "json":
        print(RENDERERS[form](found))
    if form == "text":
        print(_summary(count, found))
    return ExitCode.INVALID if has_errors(found) else ExitCode.OK


def _files(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        if not Path(path).is_dir():
            yield path
            continue
        found = [each for each in sorted(Path(path).rglob("*")) if each.suffix in SUFFIXES and each.is_file()]
        parts = {included for each in found for included in included_files(each)}
        yield from (str(each) for each in found if each.resolve() not in parts)


def _check(file: str, overrides: Sequence[str]) -> Sequence[Diagnostic]:
    try:
        return load_spec(file, overrides).warnings
    except SpecError as error:
        return error.diagnostics


def _summary(count: int, found: Sequence[Diagnostic]) -> str:
    wrong = len({each.file for each in found if has_errors([each])})
    errors = sum(has_errors([each]) for each in found)
    if not errors:
        return "ok" if count == 1 else f"ok: {count} files"
    return f"{errors} error{'s' * (errors > 1)}" + (f" in {wrong} of {count} files" if count > 1 else "")
