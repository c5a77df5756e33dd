"""The one error of this package."""


class CheckpointError(Exception):
    """A checkpoint cannot be used: where it is, what is wrong, and what would help."""

    def __init__(self, where: str, problem: str, hint: str | None = None) -> None:
        self.where = where
        self.problem = problem
        self.hint = hint
        super().__init__(f"{where}: {problem}" + (f" (hint: {hint})" if hint else ""))
