"""Errors a user may see, each with the exit code the command line answers with (DESIGN section 5)."""

import enum
from collections.abc import Sequence
from typing import ClassVar

from appliance.base.diagnostics import Diagnostic, render_text


class ExitCode(enum.IntEnum):
    """Exit codes are an API."""

    OK = 0  # fine, or nothing to change
    INTERNAL = 1  # our fault, or the environment's
    INVALID = 2  # the spec is invalid, or changes are pending (`diff`, `drift`)
    DOES_NOT_FIT = 3  # this hardware cannot run it
    APPLY_FAILED = 4  # the old generation still serves
    SLO_MISSED = 5
    NOT_COMPARABLE = 6


class ApplianceError(Exception):
    """A failure with words for the user. `hint` says what to do; `str(error)` is the message alone."""

    exit_code: ClassVar[ExitCode] = ExitCode.INTERNAL

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def report(self) -> str:
        """The text a command prints: no traceback."""
        first = f"error: {self}"
        return f"{first}\n  hint: {self.hint}" if self.hint else first


class DiagnosedError(ApplianceError):
    """One or more located diagnostics, all found in one pass."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        """`diagnostics` is not empty."""
        self.diagnostics = tuple(diagnostics)
        count = len(self.diagnostics)
        first = self.diagnostics[0]
        super().__init__(first.message if count == 1 else f"{first.message} (and {count - 1} more)")

    def report(self) -> str:
        return render_text(self.diagnostics)


class SpecError(DiagnosedError):
    """The spec is wrong, or asks for what this version does not have."""

    exit_code = ExitCode.INVALID


class FitError(DiagnosedError):
    """The spec is right, and this hardware cannot run it."""

    exit_code = ExitCode.DOES_NOT_FIT


class ApplyError(ApplianceError):
    """A deployment could not be started; what served before still serves."""

    exit_code = ExitCode.APPLY_FAILED


class SloMissedError(ApplianceError):
    exit_code = ExitCode.SLO_MISSED


class NotComparableError(ApplianceError):
    """Two results were made from different work."""

    exit_code = ExitCode.NOT_COMPARABLE
