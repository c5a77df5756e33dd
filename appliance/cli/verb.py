"""Makes functions verbs: with exit codes, errors without tracebacks, and an example in the help."""

import functools
import inspect
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import typer

from appliance.base import environ
from appliance.base.disk import is_of_disk, remedy
from appliance.base.errors import ApplianceError, ExitCode
from appliance.cli.arguments.record import VerbArguments, signature_of
from appliance.cli.pipes import drop_output, is_unread, outliving_readers

INTERRUPTED = 130  # the shells' exit code of a command that Ctrl-C ended
DEBUG_VARIABLE = "APPLIANCE_DEBUG"


class UsageError(ApplianceError):
    """The options do not go together."""

    exit_code = ExitCode.INVALID


def group(name: str, doc: str) -> typer.Typer:
    """Returns a Typer with our settings. Its help is plain text: rich would double the start time of a command."""
    return typer.Typer(
        name=name,
        help=doc,
        add_completion=False,
        rich_markup_mode=None,
        no_args_is_help=True,
        context_settings={"help_option_names": ["--help", "-h"]},
    )


def verb(
    app: typer.Typer, name: str, example: str, *, changes_things: bool = False
) -> Callable[[Callable[..., int]], Callable[..., None]]:
    """Adds a function to `app`. Its docstring is the help, its result the exit code.

    It takes one record of arguments, or a few arguments of its own. A verb that changes things finishes even if the
    reader of its output has gone; others end with their reader.
    """

    def add(function: Callable[..., int]) -> Callable[..., None]:
        record = _record_of(function)

        @functools.wraps(function)
        def command(**given: Any) -> None:
            with outliving_readers() if changes_things else nullcontext():
                raise typer.Exit(guarded(lambda: _called(function, record, given)))

        signature = inspect.signature(function) if record is None else signature_of(record)
        command.__dict__["__signature__"] = signature.replace(return_annotation=inspect.Signature.empty)
        command.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
        app.command(name, epilog=f"Example: {example}")(command)
        return command

    return add


def _record_of(function: Callable[..., int]) -> type[VerbArguments] | None:
    kinds = [kind for name, kind in function.__annotations__.items() if name != "return"]
    is_record = len(kinds) == 1 and isinstance(kinds[0], type) and issubclass(kinds[0], VerbArguments)
    return kinds[0] if is_record else None


def _called(function: Callable[..., int], record: type[VerbArguments] | None, given: dict[str, Any]) -> int:
    """Calls a verb. Arguments that were not given have the record's default, such as the empty tuple."""
    if record is None:
        return function(**given)
    return function(record(**{name: value for name, value in given.items() if value is not None}))


def guarded(work: Callable[[], int]) -> int:
    """Runs a verb. Errors are printed as messages; a traceback only if it was requested."""
    try:
        return int(work())
    except ApplianceError as error:
        print(error.report(), file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError as error:
        if not is_unread():
            return _told(error)  # the broken pipe is a socket, not our output
        drop_output()
        return int(ExitCode.OK)
    except Exception as error:  # noqa: BLE001 (the user gets a message for every error)
        return _told(error)


def _told(error: Exception) -> int:
    from appliance.base.settings import SettingsError, read_settings  # only verbs that fail need it

    if isinstance(error, OSError) and (setting := _setting_of(error)):
        print(f"error: {error.filename}: {error.strerror}\n  hint: {remedy(error, setting)}", file=sys.stderr)
        return int(ExitCode.INTERNAL)
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    try:
        if read_settings().debug:
            traceback.print_exception(error)
        print(f"error: {what}\n  hint: {DEBUG_VARIABLE}=1 shows where it happened", file=sys.stderr)
    except SettingsError as wrong:
        print(f"error: {what}\n  hint: {wrong}", file=sys.stderr)
    return int(ExitCode.INTERNAL)


def _setting_of(error: OSError) -> str | None:
    """Returns the variable that moves the folder which the refused file lies in; None if it is no folder of ours."""
    if not isinstance(error.filename, str) or not is_of_disk(error):
        return None
    path = Path(error.filename).absolute()
    folders = {environ.STATE_VARIABLE: environ.state_dir(), environ.CACHE_VARIABLE: environ.cache_dir()}
    return next((name for name, folder in folders.items() if path.is_relative_to(folder.absolute())), None)
