"""Turns an exception that one row met into that row's error; the log gets the traceback."""

from appliance.base.log import fields, logger
from appliance.engine.messages import ErrorKind
from appliance.engine.step import RowError

_log = logger("engine")


def row_fault(doing: str, error: BaseException) -> RowError:
    """Logs an exception of ours and returns the row's error. `doing` completes "while ...": "its inputs were made".

    Raises KeyboardInterrupt and SystemExit again: they end the process.
    """
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error
    _log.error("a row failed", exc_info=error, extra=fields(doing=doing))
    return RowError(
        ErrorKind.INTERNAL, f"a fault of the engine ended this sequence while {doing} ({type(error).__name__})"
    )
