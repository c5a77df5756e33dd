"""The error of this package."""

from appliance.base.errors import ApplianceError


class CheckpointError(ApplianceError):
    """A checkpoint cannot be used: where it is, what is wrong, and what would help."""

    def __init__(self, where: str, problem: str, hint: str | None = None) -> None:
        super().__init__(f"{where}: {problem}", hint=hint)
        self.where = where
        self.problem = problem
