"""The errors of loading, binding and running kernels."""

from appliance.base.errors import ApplianceError


class KernelSetError(ApplianceError):
    """A kernel set is unknown, not built, or not for this processor."""


class BindError(ApplianceError):
    """A program, its weights and its limits do not fit together."""


class StepError(ApplianceError):
    """Inputs of a step, or of its sampling, are out of bounds; nothing has run."""


class ExecutableError(ApplianceError):
    """An executable cannot run with any inputs: it was closed, or its library failed."""
