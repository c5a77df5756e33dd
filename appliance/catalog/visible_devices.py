"""Which accelerators a process sees."""

from collections.abc import Mapping, Sequence
from typing import Final

_VARIABLES: Final = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES"}


def visible_devices(device: str, first: int, count: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variable that shows a child process `count` of the accelerators that this process sees, from number
    `first` on; nothing on a CPU. environ: of this process, whose own variable may be a list of numbers or of UUIDs.
    """
    variable = _VARIABLES.get(device)
    if variable is None:
        return {}
    seen = [word.strip() for word in environ.get(variable, "").split(",") if word.strip()]
    chosen = seen[first : first + count] if seen else [str(number) for number in range(first, first + count)]
    return {variable: ",".join(chosen)}


def seen(mask: str | None, uuids: Sequence[str]) -> list[int]:
    """Returns the numbers of the devices that a variable shows, as CUDA and HIP read it: all where it is not set, and
    those before the first word that names none. A word is a number, or the beginning of one device's UUID.

    uuids: of the devices, in their order; "" where one is not known.
    """
    if mask is None:
        return list(range(len(uuids)))
    found: list[int] = []
    for word in (word.strip() for word in mask.split(",")):
        named = (
            [int(word)] if word.isdigit() else [at for at, uuid in enumerate(uuids) if word and uuid.startswith(word)]
        )
        if len(named) != 1 or named[0] >= len(uuids) or named[0] in found:
            break
        found += named
    return found
