"""Code of the operator's own, by dotted path. `base.plugin_types` has the types, docs/guides/plugins.md the rules."""

import importlib
from typing import Any

from appliance.base.errors import ApplianceError, ExitCode


class PluginError(ApplianceError):
    """A plug-in cannot be imported, or is not what its field takes."""

    exit_code = ExitCode.INVALID


def made_plugin(path: str, field: str) -> Any:
    """Imports a plug-in; a class is constructed without arguments. Raises PluginError."""
    found = load_plugin(path, field)
    try:
        return found() if isinstance(found, type) else found
    except Exception as error:
        message = f"{field}: {path} cannot be constructed: {type(error).__name__}: {error}"
        raise PluginError(message) from error


def load_plugin(path: str, field: str) -> Any:
    """Imports "module:NAME" or "module.NAME", which `field` of the spec names. Raises PluginError."""
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # an import runs code of the operator's, which may raise anything
        message = f"{field}: {path} cannot be imported: {type(error).__name__}: {error}"
        raise PluginError(message, hint="install it where the server runs, or put it on PYTHONPATH") from error
