"""Resolves the spec argument of a verb: a file, or the name of a deployment, which stands for its file."""

from collections.abc import Sequence
from typing import NamedTuple

from appliance.spec.files import names_file


class SpecTarget(NamedTuple):
    """A spec and its overrides: first those of the last apply, then those of the command line."""

    path: str
    overrides: tuple[str, ...]


def spec_target(given: str, overrides: Sequence[str] = ()) -> SpecTarget:
    """Resolves the argument. Raises ApplianceError if it is neither a file nor the name of an applied deployment."""
    if names_file(given):
        return SpecTarget(given, tuple(overrides))
    from appliance.deploy.naming import applied_from  # a file does not need this module

    path, before = applied_from(given)
    return SpecTarget(path, (*before, *overrides))
