"""The child process that measures a GPU: prints a MeasuredDevice as JSON. `python -m ... cuda:0 MEBIBYTES WIDTH`"""

import sys
import time
from collections.abc import Callable
from typing import Final

import msgspec
import torch

from appliance.hardware.facts import MeasuredDevice
from appliance.kernels.gpu.device import Device

PASSES: Final = 5  # the best of them counts
_REPEATS: Final = 4  # of a pass, so that launches are hidden
_TYPES: Final = {"f32": torch.float32, "bf16": torch.bfloat16}


def measure_device(device: Device, size_bytes: int, width: int) -> MeasuredDevice:
    """Measures copies of `size_bytes`, and products of matrices [width, width]; all take memory of these sizes."""
    copying = _copy_s(device, size_bytes)
    peaks = {name: 2 * width**3 / _product_s(device, width, dtype) for name, dtype in _TYPES.items()}
    return MeasuredDevice(copy_bandwidth=2 * size_bytes / copying, peaks=peaks)


def _copy_s(device: Device, size_bytes: int) -> float:
    source, target = (torch.ones(size_bytes, dtype=torch.uint8, device=device.name) for _ in range(2))
    return _best_s(device, lambda: target.copy_(source))


def _product_s(device: Device, width: int, dtype: torch.dtype) -> float:
    left, right = (torch.ones(width, width, dtype=dtype, device=device.name) for _ in range(2))
    out = torch.empty_like(left)
    return _best_s(device, lambda: torch.mm(left, right, out=out))


def _best_s(device: Device, run: Callable[[], object]) -> float:
    """Returns the seconds of a run, without those that start the device."""
    run()
    best = float("inf")
    for _ in range(PASSES):
        device.wait()
        started = time.perf_counter()
        for _ in range(_REPEATS):
            run()
        device.wait()
        best = min(best, (time.perf_counter() - started) / _REPEATS)
    return best


def main(name: str, mebibytes: str, width: str) -> None:
    found = measure_device(Device.named(name), int(mebibytes) << 20, int(width))
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
