import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from appliance.hardware import HardwareFacts, MeasuredFacts, probe_machine
from appliance.hardware.facts import NumaNode
from appliance.hardware.measured import load_measured, store_measured
from appliance.hardware.probe import nvidia
from appliance.hardware.probe.amd import gfx_name
from appliance.hardware.probe.files import parse_cpu_list

from .machines import ARM_CPUINFO, amd_files, cpu_files, write


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPLIANCE_CACHE", str(tmp_path / "cache"))
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def probe(root: Path, files: dict[str, str], affinity: tuple[int, ...], architecture: str = "x86_64") -> HardwareFacts:
    return probe_machine(write(root, files), affinity=affinity, architecture=architecture)


def test_this_machine() -> None:
    facts = probe_machine()
    assert facts.name == "this-machine"
    assert 1 <= facts.cpu.num_cores <= facts.cpu.num_threads <= len(facts.cpu.affinity)
    assert 0 < facts.memory.limit_bytes <= facts.memory.total_bytes
    assert msgspec.json.decode(msgspec.json.encode(facts), type=HardwareFacts) == facts


def test_cpu(tmp_path: Path) -> None:
    cpu = probe(tmp_path, cpu_files(8, l3_groups=2), tuple(range(16))).cpu
    assert (cpu.vendor, cpu.model_name) == ("GenuineIntel", "Made-up CPU @ 3.00GHz")
    assert cpu.flags == ("avx2", "f16c", "fma", "fpu", "sse2")
    assert (cpu.num_cores, cpu.num_threads) == (8, 16)
    assert (cpu.l1d_bytes, cpu.l2_bytes, cpu.l3_bytes) == (48 << 10, 2 << 20, 64 << 20)


def test_numa_nodes_have_the_cpus_of_the_mask(tmp_path: Path) -> None:
    nodes = {0: "0-3", 1: "", 2: "4-7", 10: "8-15"}  # node 1 has memory alone
    files = {f"sys/devices/system/node/node{number}/cpulist": cpus for number, cpus in nodes.items()}
    cpu = probe(tmp_path, cpu_files(8) | files, (1, 2, 5, 9)).cpu
    assert cpu.num_numa_nodes == 4
    assert cpu.numa_nodes == (NumaNode(0, (1, 2)), NumaNode(2, (5,)), NumaNode(10, (9,)))


@pytest.mark.parametrize(("affinity", "cores", "threads"), [((0, 1), 2, 2), ((0, 8), 1, 2), ((3,), 1, 1)])
def test_affinity_counts_cores_once(tmp_path: Path, affinity: tuple[int, ...], cores: int, threads: int) -> None:
    cpu = probe(tmp_path, cpu_files(8), affinity).cpu
    assert (cpu.num_cores, cpu.num_threads, cpu.affinity) == (cores, threads, affinity)


QUOTAS = [
    ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "300000 100000"}, 3),
    ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "max 100000",
      "sys/fs/cgroup/a/cpu.max": "150000 100000"}, 1),
    ({"proc/self/cgroup": "0::/host/path", "sys/fs/cgroup/cpu.max": "200000 100000"}, 2),
    ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "10000 100000"}, 1),
    ({"proc/self/cgroup": "3:cpu,cpuacct:/x", "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "250000",
      "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000"}, 2),
    ({"proc/self/cgroup": "3:cpu,cpuacct:/x", "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "-1",
      "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000"}, 8),
    ({"proc/self/cgroup": "0::/../../escape"}, 8),
    ({}, 8),
]  # fmt: skip


@pytest.mark.parametrize(("files", "cores"), QUOTAS)
def test_cpu_quota(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    assert probe(tmp_path, cpu_files(8) | files, tuple(range(16))).cpu.num_cores == cores


GIB = 1 << 30
MEMORY = [
    (
        {
            "proc/self/cgroup": "0::/a/b",
            "sys/fs/cgroup/a/b/memory.max": "max",
            "sys/fs/cgroup/a/memory.max": str(4 * GIB),
        },
        4,
    ),
    ({"proc/self/cgroup": "0::/a", "sys/fs/cgroup/unified/a/memory.max": str(5 * GIB)}, 5),
    ({"proc/self/cgroup": "4:memory:/x", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": str(2 * GIB)}, 2),
    ({"proc/self/cgroup": "4:memory:/x", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "9223372036854771712"}, 16),
    ({}, 16),
]


@pytest.mark.parametrize(("files", "limit"), MEMORY)
def test_memory_limit(tmp_path: Path, files: dict[str, str], limit: int) -> None:
    memory = probe(tmp_path, cpu_files(2) | files, (0, 1)).memory
    assert (memory.total_bytes, memory.limit_bytes) == (16 * GIB, limit * GIB)


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    facts = probe(tmp_path, {}, (0, 1))
    assert (facts.cpu.num_cores, facts.cpu.flags, facts.cpu.num_numa_nodes) == (2, (), 1)
    assert facts.cpu.l1d_bytes > 0
    assert facts.accelerators == ()


def test_arm(tmp_path: Path) -> None:
    cpu = probe(tmp_path, {"proc/cpuinfo": ARM_CPUINFO}, (0,), "aarch64").cpu
    assert (cpu.vendor, cpu.model_name, cpu.flags) == ("ARM", "0xd40", ("asimd", "fp", "sve"))


def test_amd_accelerators(tmp_path: Path) -> None:
    first, second = probe(tmp_path, cpu_files(2) | amd_files(2), (0, 1)).accelerators
    assert first == second
    assert (first.architecture, first.num_units, first.memory_bytes) == ("gfx942", 304, 206141652992)
    assert (first.driver, first.interconnect) == ("6.10.5", "xgmi")


@pytest.mark.parametrize(
    ("version", "name"), [(90010, "gfx90a"), (90402, "gfx942"), (90500, "gfx950"), (110000, "gfx1100")]
)
def test_gfx_names(version: int, name: str) -> None:
    assert gfx_name(version) == name


FAKE_NVML = r"""
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory_t;
int nvmlInit_v2(void) { return INIT; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { strncpy(s, "570.1", n); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = (void *)(unsigned long)(0x7fff00000000 + i); return 0; }
int nvmlDeviceGetName(void *h, char *s, unsigned n) {
  strncpy(s, (unsigned long)h & 1 ? "GPU one" : "GPU zero", n);
  return 0;
}
int nvmlDeviceGetUUID(void *h, char *s, unsigned n) {
    strncpy(s, (unsigned long)h & 1 ? "GPU-6f3a-1" : "GPU-6f3b-0", n); return 0; }
int nvmlDeviceGetCudaComputeCapability(void *h, int *a, int *b) { *a = 9; *b = 0; return 0; }
int nvmlDeviceGetMemoryInfo(void *h, memory_t *m) { m->total = 85520809984ULL; return 0; }
int nvmlDeviceGetNumGpuCores(void *h, unsigned *n) { *n = 16896; return 0; }
int nvmlDeviceGetNvLinkState(void *h, unsigned link, int *on) { *on = (unsigned long)h & 1 && link == 2; return 0; }
"""


def fake_nvml(folder: Path, init: int = 0) -> str:
    source, library = folder / "nvml.c", folder / "libfake.so"
    source.write_text(FAKE_NVML)
    subprocess.run(["gcc", "-shared", "-fPIC", f"-DINIT={init}", "-o", library, source], check=True)
    return str(library)


def test_nvidia_accelerators(tmp_path: Path) -> None:
    root = write(tmp_path / "root", {"dev/nvidiactl": ""})
    zero, one = nvidia.probe_nvidia(root, fake_nvml(tmp_path))
    assert (zero.name, zero.interconnect, one.name, one.interconnect) == ("GPU zero", "pcie", "GPU one", "nvlink")
    assert (one.architecture, one.num_units, one.memory_bytes, one.driver) == ("sm90", 132, 85520809984, "570.1")


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        ("1", ["GPU one"]), ("1,0", ["GPU one", "GPU zero"]), ("GPU-6f3a", ["GPU one"]), ("GPU-6f", []), ("", []),
        ("-1", []), ("0,7,1", ["GPU zero"]), ("1,-1,0", ["GPU one"]), ("0,0", ["GPU zero"]),
        ("MIG-3", ["GPU zero", "GPU one"]),
    ],
)  # fmt: skip
def test_visible_devices_are_those_of_cuda(
    mask: str, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA reads its variable up to the first word that names no device, or more than one."""
    root, library = write(tmp_path / "root", {"dev/nvidiactl": ""}), fake_nvml(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    assert [device.name for device in nvidia.probe_nvidia(root, library)] == names


@pytest.mark.parametrize(
    ("masks", "count"),
    [
        ({"HIP_VISIBLE_DEVICES": "1"}, 1), ({"CUDA_VISIBLE_DEVICES": "1"}, 1), ({"ROCR_VISIBLE_DEVICES": ""}, 0),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, 1),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, 0),
        ({"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "0"}, 2),
    ],
)  # fmt: skip
def test_visible_devices_are_those_of_rocm(
    masks: dict[str, str], count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, mask in masks.items():
        monkeypatch.setenv(name, mask)
    assert len(probe(tmp_path, cpu_files(2) | amd_files(2), (0, 1)).accelerators) == count


def test_a_driver_that_fails_or_hangs_means_no_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = write(tmp_path / "root", {"dev/nvidiactl": ""})
    assert nvidia.probe_nvidia(root, fake_nvml(tmp_path, init=9)) == ()
    assert nvidia.probe_nvidia(root, "libnothing.so") == ()

    def hang(*args: object, **kwargs: object) -> None:
        raise subprocess.TimeoutExpired([sys.executable], nvidia.TIMEOUT_S)

    monkeypatch.setattr(nvidia.subprocess, "run", hang)
    assert nvidia.probe_nvidia(root) == ()


def test_cpu_lists() -> None:
    assert parse_cpu_list("0-2,5,7-8\n") == (0, 1, 2, 5, 7, 8)
    assert parse_cpu_list("") == ()


def test_measured_figures_belong_to_the_hardware(tmp_path: Path) -> None:
    facts = probe(tmp_path, cpu_files(4), (0, 1, 2, 3))
    figures = MeasuredFacts(read_bandwidth=1e10, f32_peak=2e11)
    path = store_measured(facts, figures)
    assert load_measured(facts).measured == figures
    assert probe(tmp_path, {}, (0, 1, 2, 3)).measured == figures
    assert probe(tmp_path, {}, (0, 1)).measured is None
    path.write_text("{}")
    assert load_measured(facts).measured is None


def test_a_cache_that_cannot_be_looked_at_has_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPLIANCE_CACHE", "/tmp/" + 300 * "x")
    assert probe_machine().measured is None
