"""The child process that asks NVML: prints a JSON list of NamedDevice. `python -m ...probe.nvml libnvidia-ml.so.1`

Signatures as in NVIDIA's nvml.h.
"""

import ctypes
import sys
from typing import Any, Final

import msgspec

from appliance.hardware.facts import AcceleratorFacts
from appliance.hardware.probe.named import NamedDevice

_SUCCESS: Final = 0
_MAX_LINKS: Final = 18
_TEXT_BYTES: Final = 96
# CUDA cores of one multiprocessor (CUDA C programming guide, "Arithmetic Instructions").
_CORES_PER_UNIT: Final = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}


class NvmlError(Exception):
    """A call did not succeed."""


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Nvml:
    """The few calls that facts need. Raises NvmlError when one fails, OSError when the library is not there."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self._call("nvmlInit_v2")

    def devices(self) -> list[NamedDevice]:
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        driver = ctypes.create_string_buffer(_TEXT_BYTES)
        self._call("nvmlSystemGetDriverVersion", driver, ctypes.c_uint(_TEXT_BYTES))
        return [self._device(index, driver.value.decode()) for index in range(count.value)]

    def _device(self, index: int, driver: str) -> NamedDevice:
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        name = ctypes.create_string_buffer(_TEXT_BYTES)
        self._call("nvmlDeviceGetName", handle, name, ctypes.c_uint(_TEXT_BYTES))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        cores = ctypes.c_uint()
        self._call("nvmlDeviceGetNumGpuCores", handle, ctypes.byref(cores))
        capability = (major.value, minor.value)
        uuid = ctypes.create_string_buffer(_TEXT_BYTES)
        self._call("nvmlDeviceGetUUID", handle, uuid, ctypes.c_uint(_TEXT_BYTES))
        facts = AcceleratorFacts(
            vendor="nvidia",
            name=name.value.decode(),
            architecture=f"sm{capability[0]}{capability[1]}",
            memory_bytes=memory.total,
            num_units=cores.value // _CORES_PER_UNIT.get(capability, 128),
            driver=driver,
            interconnect="nvlink" if self._has_links(handle) else "pcie",
        )
        return NamedDevice(uuid.value.decode(), facts)

    def _has_links(self, handle: ctypes.c_void_p) -> bool:
        """A call that fails means that the device has no such link."""
        active = ctypes.c_int()
        for link in range(_MAX_LINKS):
            state = self._library.nvmlDeviceGetNvLinkState(handle, ctypes.c_uint(link), ctypes.byref(active))
            if state == _SUCCESS and active.value:
                return True
        return False

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != _SUCCESS:
            raise NvmlError(f"{name} returned {status}")


def main() -> None:
    try:
        devices = Nvml(sys.argv[1]).devices()
    except (OSError, AttributeError, NvmlError) as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(1) from error
    sys.stdout.buffer.write(msgspec.json.encode(devices))


if __name__ == "__main__":
    main()
