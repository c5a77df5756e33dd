"""The one error of this package."""

from appliance.base.errors import ApplianceError


class ModelError(ApplianceError):
    """A config asks for something that its family cannot express in this version."""
