"""NVIDIA accelerators through NVML, asked in a child process: a driver that hangs costs a time-out, not the command."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from appliance.base import environ
from appliance.base.log import logger
from appliance.catalog.visible_devices import seen
from appliance.hardware.facts import AcceleratorFacts
from appliance.hardware.probe.named import NamedDevice

TIMEOUT_S: Final = 15.0
LIBRARY: Final = "libnvidia-ml.so.1"
_log = logger("hardware")


def probe_nvidia(root: Path, library: str = LIBRARY) -> tuple[AcceleratorFacts, ...]:
    """Devices that NVML shows, in its order, cut down to those that CUDA_VISIBLE_DEVICES shows.

    Empty without the driver's device file. A failing driver is logged, and the machine counts as having none.
    """
    if not (root / "dev/nvidiactl").exists():
        return ()
    command = [sys.executable, "-m", "appliance.hardware.probe.nvml", library]
    try:
        result = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S, check=True)
        devices = msgspec.json.decode(result.stdout, type=tuple[NamedDevice, ...])
    except subprocess.CalledProcessError as error:
        _log.warning("NVML failed: %s", error.stderr.decode(errors="replace").strip().splitlines()[-1:])
        return ()
    except (subprocess.TimeoutExpired, msgspec.DecodeError, OSError) as error:
        _log.warning("NVML did not answer: %s", error)
        return ()
    return _visible(devices, environ.snapshot().get("CUDA_VISIBLE_DEVICES"))


def _visible(devices: tuple[NamedDevice, ...], mask: str | None) -> tuple[AcceleratorFacts, ...]:
    """A part of a card has a UUID that NVML's list of cards does not hold: then all cards are left."""
    if mask is not None and mask.startswith("MIG-"):
        _log.warning("CUDA_VISIBLE_DEVICES names a part of a card (MIG), whose memory is less than the card's")
        return tuple(device.facts for device in devices)
    return tuple(devices[number].facts for number in seen(mask, [device.uuid for device in devices]))
