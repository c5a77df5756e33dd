"""The error of this package."""

from appliance.base.errors import ApplianceError


class CheckpointError(ApplianceError):
    """A checkpoint cannot be used. The message names the file and the problem; the hint says what would help."""

    def __init__(self, where: str, problem: str, hint: str | None = None) -> None:
        super().__init__(f"{where}: {problem}", hint=hint)
        self.where = where
        self.problem = problem


class SealedError(CheckpointError):
    """An encrypted tensor cannot be opened with the key that is given; no new attempt would."""


class CacheError(CheckpointError):
    """The folder that keeps checkpoints cannot be used; another place to fetch from would not help."""
