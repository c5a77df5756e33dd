"""Says what to do if a folder of ours cannot be used: full disk, missing permission, a file in its place."""

import errno
from typing import Final

_REMEDIES: Final = {
    errno.ENOSPC: "make room on its disk",
    errno.EDQUOT: "make room within your quota of its disk",
    errno.EFBIG: "raise the limit on the size of a file (ulimit -f)",
    errno.EROFS: "mount its file system writable",
    errno.EACCES: "let this user read and write there",
    errno.EPERM: "let this user read and write there",
    errno.ENOTDIR: "move the file away that lies where a folder is needed",
    errno.EEXIST: "move the file away that lies where a folder is needed",
    errno.EISDIR: "move the folder away that lies where a file is needed",
    errno.ENAMETOOLONG: "shorten its path",
    errno.EIO: "look after its disk",
}


def is_of_disk(error: OSError) -> bool:
    """Returns whether the file system of this machine refused, rather than a network or another process."""
    return error.errno in _REMEDIES


def remedy(error: OSError, setting: str) -> str:
    """Returns a hint: what would help, and the setting that names another folder."""
    first = _REMEDIES.get(error.errno or 0)
    other = f"name another folder with {setting}"
    return f"{first}, or {other}" if first else other
