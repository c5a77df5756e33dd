"""Measures a GPU in a process of its own, so that torch stays out of this one."""

import subprocess
import sys
from typing import Final

import msgspec

from appliance.hardware.facts import MeasuredDevice
from appliance.kernels.errors import KernelSetError

TIMEOUT_S: Final = 120.0
COPY_MEBIBYTES: Final = 512  # beyond any cache
WIDTH: Final = 8192


def device_rates(device: str, mebibytes: int = COPY_MEBIBYTES, width: int = WIDTH) -> MeasuredDevice:
    """Returns the figures of a device, such as "cuda:0". Raises KernelSetError if it cannot be measured."""
    command = [sys.executable, "-m", "appliance.kernels.gpu.measure", device, str(mebibytes), str(width)]
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S, check=True)
        return msgspec.json.decode(done.stdout, type=MeasuredDevice)
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise KernelSetError(f"{device} cannot be measured: {' '.join(last)}") from error
    except (subprocess.TimeoutExpired, msgspec.DecodeError, OSError) as error:
        raise KernelSetError(f"{device} cannot be measured: {error}") from error
