"""What Linux does for a process by prctl(2): its name, and its end with its parent."""

import ctypes
import os
import signal
from typing import Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)  # loaded before any fork, after which little is safe
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15


def set_process_name(name: bytes) -> None:
    """Gives this process a name that `ps` and `/proc/PID/comm` show: at most 15 bytes. Raises OSError."""
    _prctl(_PR_SET_NAME, name)


def end_with_parent(parent: int) -> bool:
    """Has the system kill this process when the thread that started it ends, even if this one is stopped.

    parent: the process that started this one. Returns False where it has ended already. Raises OSError.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent  # else it ended before the signal was set


def _prctl(option: int, argument: object) -> None:
    if _LIBC.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
