"""The `appliance` command. A verb's modules are imported when the verb runs, so `validate` and `plan` stay fast."""

import gc
import sys
from collections.abc import Sequence

from appliance import __version__
from appliance.base import environ
from appliance.base.errors import ExitCode
from appliance.cli.other_words import hint_for
from appliance.cli.pipes import drop_output, open_missing_streams


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code (`appliance.base.errors.ExitCode`).

    arguments None: those of this process.
    """
    if arguments is None:
        open_missing_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    return _flushed(_run(given))


def _run(given: list[str]) -> int:
    if given in (["--version"], ["-V"], ["version"]):
        print(f"appliance {__version__}")
        return ExitCode.OK
    if given[:1] == ["help"]:
        given = [*given[1:], "--help"]
    if (hint := hint_for(given[0] if given else "")) is not None:
        print(f"error: no command {given[0]!r}\n  hint: {hint}", file=sys.stderr)
        return ExitCode.INVALID
    gc.set_threshold(50_000, 20, 20)  # a short verb makes many lasting objects; scanning them costs a tenth of its time
    environ.set_default("PYDANTIC_DISABLE_PLUGINS", "__all__")  # it would search every installed package for plugins
    from appliance.cli.commands import build

    if environ.get(environ.COMPLETION_VARIABLE):
        from typer.completion import completion_init  # type: ignore[attr-defined]  # it is public, but not exported

        completion_init()
    try:
        build()(args=given or ["--help"], prog_name="appliance")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    return ExitCode.OK


def _flushed(code: int) -> int:
    """Flushes the output. If it cannot be written, as on a full disk, the verb fails even if it did its work."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
    except OSError as error:
        print(f"error: the output cannot be written: {error.strerror or error}", file=sys.stderr)
        drop_output()
        return code or ExitCode.INTERNAL
    return code


if __name__ == "__main__":
    sys.exit(main())
