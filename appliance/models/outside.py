"""Families of other packages: entry points of the group `appliance.models`, which are read only where plug-ins are
trusted. The name is an architecture, and the value a module with `build`, as the modules beside this one are."""

from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Final

from appliance.base.plugins import PluginError
from appliance.catalog.architectures import ARCHITECTURES, DECODES, Architecture

GROUP: Final = "appliance.models"


def find_family(architecture: str) -> Architecture | None:
    """Returns the family that an installed package has for an architecture of which the catalogue has none. Nothing is
    imported. Raises PluginError if two packages have one, or the entry point is no module."""
    known = ARCHITECTURES.get(architecture)
    if known is not None and known.family is not None:
        return None
    found = {(_package(each), each.value): each for each in entry_points(group=GROUP) if each.name == architecture}
    if not found:
        return None
    if len(found) > 1:
        packages = " and ".join(sorted(package for package, _ in found))
        raise PluginError(f"{packages} have a family for {architecture} each", hint="uninstall all but one")
    ((package, value), entry), *_ = found.items()
    if entry.attr or entry.extras:
        raise PluginError(
            f"the entry point {architecture} of {package} is {value!r}", hint="write the name of a module"
        )
    number = entry.dist.version if entry.dist is not None else ""
    return Architecture(architecture, entry.module, DECODES, package=package, version=number)


def check_installed(planned: Architecture) -> Architecture:
    """Returns a family of another package. Raises PluginError if that is not installed here as it was planned."""
    assert planned.package is not None, "it is of another package"
    try:
        here = version(planned.package)
    except PackageNotFoundError:
        here = "missing"
    if here != planned.version:
        message = f"{planned.name} was planned with {planned.package} {planned.version}, and here it is {here}"
        raise PluginError(message, hint=f"install {planned.package} {planned.version}, or plan again: appliance plan")
    return planned


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "?"
