"""What a verb that takes a spec was given: a file, or the name of a deployment, which stands for its file."""

from collections.abc import Sequence
from typing import NamedTuple

from appliance.spec.files import names_file


class SpecTarget(NamedTuple):
    """overrides: those that the deployment was applied with come before those of the command line."""

    path: str
    overrides: tuple[str, ...]


def spec_target(given: str, overrides: Sequence[str] = ()) -> SpecTarget:
    """Raises ApplianceError when it is neither a file nor the name of a deployment that was applied here."""
    if names_file(given):
        return SpecTarget(given, tuple(overrides))
    from appliance.deploy.naming import applied_from  # a file needs nothing of what runs

    path, before = applied_from(given)
    return SpecTarget(path, (*before, *overrides))
