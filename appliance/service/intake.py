"""One value says if an engine's client takes requests, and if not, why. The watcher of the engine sets it."""

from dataclasses import dataclass
from enum import StrEnum

from appliance.engine.messages import ErrorKind
from appliance.service.errors import RequestFailedError


class IntakeState(StrEnum):
    """What a client does with a new request."""

    OPEN = "open"
    STARTING = "starting"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Intake:
    """`reason` is what a refused request is answered with; empty while requests are taken."""

    state: IntakeState
    reason: str = ""

    @property
    def is_open(self) -> bool:
        return self.state is IntakeState.OPEN

    def refusal(self) -> RequestFailedError:
        """The error of a request that cannot be taken, or that has no engine to go to."""
        return RequestFailedError(ErrorKind.UNAVAILABLE, self.reason or "there is no engine")


OPEN = Intake(IntakeState.OPEN)
STARTING = Intake(IntakeState.STARTING, "the engine is starting")
REPLACED = Intake(IntakeState.DRAINING, "the engine is being replaced")
DRAINING = Intake(IntakeState.DRAINING, "the server is shutting down")


def failed(reason: str) -> Intake:
    """The intake of a client whose engine is gone or unusable, for `reason`."""
    return Intake(IntakeState.FAILED, reason)
