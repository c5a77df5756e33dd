"""The error of this package."""

from typing import ClassVar

from appliance.base.errors import ApplianceError, ExitCode


class HardwareError(ApplianceError):
    """Facts or profiles cannot be used: no profile matches, two match equally, or a file is wrong."""

    exit_code: ClassVar[ExitCode] = ExitCode.DOES_NOT_FIT
