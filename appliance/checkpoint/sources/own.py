"""Sources of other schemes, which code of the operator's own finds: `model.resolver`."""

from pathlib import Path
from typing import Final

from appliance.base.plugin_types import ResolveSource
from appliance.base.plugins import PluginError, load_plugin
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.sources.options import UnreachableError

FIELD: Final = "model.resolver"


def resolve_own(source: str, resolver: str, *, offline: bool) -> Path:
    """Returns what a resolver finds for a source. Raises PluginError if it cannot be imported, UnreachableError if it
    finds nothing or fails, and CheckpointError if what it returns is no path on this machine."""
    resolve: ResolveSource = load_plugin(resolver, FIELD)
    if not callable(resolve):
        raise PluginError(
            f"{FIELD}: {resolver} is no function", hint="def resolve(source, offline) that returns a path"
        )
    try:
        found = resolve(source, offline)
        path = None if found is None else Path(found)
    except Exception as error:
        raise UnreachableError(source, f"{resolver} failed: {type(error).__name__}: {error}", f"see {FIELD}") from error
    if path is None:
        raise UnreachableError(source, f"{resolver} has found nothing", f"see {FIELD}")
    if not path.is_absolute() or not path.exists():
        raise CheckpointError(source, f"{resolver} returned {path.name!r}, which is no absolute path on this machine")
    return path
