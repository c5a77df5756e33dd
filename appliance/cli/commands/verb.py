"""How a function becomes a verb: exit codes, errors without tracebacks, and an example in its help."""

import functools
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from typing import ParamSpec

import typer

from appliance.base import environ
from appliance.base.errors import ApplianceError, ExitCode
from appliance.cli.pipes import outliving_readers

P = ParamSpec("P")

INTERRUPTED = 130  # what shells answer for a command that Ctrl-C ended
DEBUG_VARIABLE = "APPLIANCE_DEBUG"


class UsageError(ApplianceError):
    """Options that do not go together."""

    exit_code = ExitCode.INVALID


def group(name: str, doc: str) -> typer.Typer:
    """A Typer with the settings of all ours. Plain help text: rich would double the time a command takes to start."""
    return typer.Typer(name=name, help=doc, add_completion=False, rich_markup_mode=None, no_args_is_help=True)


def verb(
    app: typer.Typer, name: str, example: str, *, changes_things: bool = False
) -> Callable[[Callable[P, int]], Callable[P, None]]:
    """Adds a function to `app`. Its docstring is the help, its answer the exit code.

    A verb that changes things finishes even when the reader of its output has gone; others end with their reader.
    """

    def add(function: Callable[P, int]) -> Callable[P, None]:
        @functools.wraps(function)
        def command(*args: P.args, **kwargs: P.kwargs) -> None:
            with outliving_readers() if changes_things else nullcontext():
                raise typer.Exit(guarded(lambda: function(*args, **kwargs)))

        del command.__annotations__["return"]
        app.command(name, epilog=f"Example: {example}")(command)
        return command

    return add


def guarded(work: Callable[[], int]) -> int:
    """Runs a verb and returns its exit code. Errors are printed in words; a traceback only when it was asked for."""
    try:
        return int(work())
    except ApplianceError as error:
        print(error.report(), file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, for instance `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.OK)
    except Exception as error:  # noqa: BLE001 (the last stop before the user, who gets words)
        return _told(error)


def _told(error: Exception) -> int:
    if environ.get(DEBUG_VARIABLE):
        traceback.print_exception(error)
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    print(f"error: {what}\n  hint: {DEBUG_VARIABLE}=1 shows where it happened", file=sys.stderr)
    return int(ExitCode.INTERNAL)
