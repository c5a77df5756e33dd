"""Reading a YAML file of another system that lists what it serves under one key."""

from typing import Any

import yaml

from appliance.importing.draft import CannotImportError


def read_listing(text: str, key: str, hint: str) -> dict[str, Any]:
    """Returns the file's mapping, in which `key` is a mapping that is not empty. Raises CannotImportError otherwise."""
    try:
        given = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise CannotImportError(f"the file is not YAML: {error}") from error
    listing = given.get(key) if isinstance(given, dict) else None
    if not isinstance(listing, dict) or not listing:
        raise CannotImportError(f"the file has no {key}", hint=hint)
    return dict(given)
