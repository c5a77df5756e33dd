"""Packages of extras, which are imported only where something asks for them."""

import importlib
from typing import Any

from appliance.base.errors import ApplianceError, ExitCode


class MissingExtraError(ApplianceError):
    """A package is asked for that the base install does not bring."""

    exit_code = ExitCode.INVALID


def import_extra(module: str, *, extra: str, asked_by: str) -> Any:
    """Imports a module of an extra's package. Raises MissingExtraError with the line that installs it.

    asked_by: what needs it, such as "batch.backend: ray".
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        message = f"{asked_by} needs {module.partition('.')[0]}, and {error.name} is not installed"
        raise MissingExtraError(message, hint=f"pip install 'appliance[{extra}]'") from error
