"""NVIDIA accelerators through NVML, asked in a child process: a driver that hangs costs a time-out, not the command."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from appliance.base import environ
from appliance.base.log import logger
from appliance.hardware.facts import AcceleratorFacts

TIMEOUT_S: Final = 15.0
LIBRARY: Final = "libnvidia-ml.so.1"
_log = logger("hardware")


def probe_nvidia(root: Path, library: str = LIBRARY) -> tuple[AcceleratorFacts, ...]:
    """Devices that NVML shows, in its order, cut down to CUDA_VISIBLE_DEVICES where that lists numbers.

    Empty without the driver's device file. A failing driver is logged, and the machine counts as having none.
    """
    if not (root / "dev/nvidiactl").exists():
        return ()
    command = [sys.executable, "-m", "appliance.hardware.probe.nvml", library]
    try:
        result = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S, check=True)
        devices = msgspec.json.decode(result.stdout, type=tuple[AcceleratorFacts, ...])
    except subprocess.CalledProcessError as error:
        _log.warning("NVML failed: %s", error.stderr.decode(errors="replace").strip().splitlines()[-1:])
        return ()
    except (subprocess.TimeoutExpired, msgspec.DecodeError, OSError) as error:
        _log.warning("NVML did not answer: %s", error)
        return ()
    return _visible(devices, environ.get("CUDA_VISIBLE_DEVICES"))


def _visible(devices: tuple[AcceleratorFacts, ...], mask: str | None) -> tuple[AcceleratorFacts, ...]:
    """Only plain numbers are understood; UUIDs leave the list as it is."""
    words = [word.strip() for word in mask.split(",")] if mask else []
    if not words or not all(word.isdigit() for word in words):
        return devices
    return tuple(devices[int(word)] for word in words if int(word) < len(devices))
