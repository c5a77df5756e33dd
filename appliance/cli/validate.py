"""`appliance validate`: checks a spec by itself, without a machine or a model."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from appliance.base.diagnostics import RENDERERS, Diagnostic, has_errors
from appliance.base.errors import ExitCode, SpecError
from appliance.cli.arguments.spec import DiagnosticsForm, ValidateArguments
from appliance.cli.spec_target import SpecTarget, spec_target
from appliance.spec.compose import included_files
from appliance.spec.files import SPEC_SUFFIXES
from appliance.spec.loader import load_spec

_FOLDER_SUFFIXES = SPEC_SUFFIXES[:2]  # a folder may contain JSON files that are not specs


def run(arguments: ValidateArguments) -> int:
    """Checks files, and the YAML files below folders. Returns 0, or 2 if one is wrong.

    In a folder, a file that another one includes is checked together with that one.
    """
    form = DiagnosticsForm.JSON if arguments.as_json else arguments.form
    found: list[Diagnostic] = []
    count = 0
    for target in _targets(arguments):
        count += 1
        found += _check(target)
    if count == 0:
        found.append(Diagnostic(rule="file/read", message="no .yaml file here", file=", ".join(arguments.paths)))
    if found or form == "json":
        print(RENDERERS[form](found))
    if form == "text":
        print(_summary(count, found))
    return ExitCode.INVALID if has_errors(found) else ExitCode.OK


def _targets(arguments: ValidateArguments) -> Iterator[SpecTarget]:
    for path in arguments.paths:
        if not Path(path).is_dir():
            yield spec_target(path, arguments.overrides)
            continue
        found = [each for each in sorted(Path(path).rglob("*")) if each.suffix in _FOLDER_SUFFIXES and each.is_file()]
        parts = {included for each in found for included in included_files(each)}
        yield from (SpecTarget(str(each), arguments.overrides) for each in found if each.resolve() not in parts)


def _check(target: SpecTarget) -> Sequence[Diagnostic]:
    try:
        return load_spec(target.path, target.overrides).warnings
    except SpecError as error:
        return error.diagnostics


def _summary(count: int, found: Sequence[Diagnostic]) -> str:
    wrong = len({each.file for each in found if has_errors([each])})
    errors = sum(has_errors([each]) for each in found)
    if not errors:
        return "ok" if count == 1 else f"ok: {count} files"
    return f"{errors} error{'s' * (errors > 1)}" + (f" in {wrong} of {count} files" if count > 1 else "")
