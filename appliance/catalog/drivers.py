"""What is known of the vendors of GPUs: their kernel sets, their tools, and the drivers that builds of torch need."""

from typing import Final, NamedTuple


class VendorTools(NamedTuple):
    """vendor: as it writes itself. lists_cards: its command that does. container: options with which one sees cards."""

    vendor: str
    lists_cards: str
    container: str


KERNEL_SET_OF: Final = {"nvidia": "cuda", "amd": "rocm"}  # by the vendor of facts
VENDORS: Final = {  # by kind of device
    "cuda": VendorTools("NVIDIA", "nvidia-smi", "--gpus all"),
    "rocm": VendorTools("AMD", "rocminfo", "--device /dev/kfd --device /dev/dri"),
}
# NVIDIA's table of CUDA and minimum driver versions, by CUDA's major version: within one, older drivers run newer
# minor versions.
OLDEST_DRIVERS: Final = {11: 450, 12: 525, 13: 580}


def driver_obstacle(vendor: str, torch: str | None, driver: str) -> str:
    """Says that a driver is too old for the installed torch; empty if it is not, or if one of both is not known.

    torch: its version with its build, such as 2.13.0+cu130. driver: of NVIDIA, such as 570.124.06; those of AMD
    come with the kernel, and nothing is said of them.
    """
    build = (torch or "").partition("+")[2].removeprefix("cu")
    number = driver.partition(".")[0]
    if vendor != "nvidia" or not (build.isdigit() and number.isdigit()):
        return ""
    cuda = int(build) // 10
    oldest = OLDEST_DRIVERS.get(cuda, 0)
    if int(number) >= oldest:
        return ""
    return (
        f"driver {driver} is too old for torch {torch}, whose CUDA {cuda} needs {oldest} or later; update the driver,"
        " or install a torch for an older CUDA"
    )
