"""What becomes of an exception that one row met: that row fails with a reason, and the log has the traceback."""

from appliance.base.log import fields, logger
from appliance.engine.messages import ErrorKind
from appliance.engine.step import RowError

_log = logger("engine")


def row_fault(doing: str, error: BaseException) -> RowError:
    """Why a row fails that met an exception of ours. `doing` says what was done: "its inputs were made".

    Raises the exception again where it is to end the process.
    """
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error
    _log.error("a row failed", exc_info=error, extra=fields(doing=doing))
    return RowError(
        ErrorKind.INTERNAL, f"a fault of the engine ended this sequence while {doing} ({type(error).__name__})"
    )
