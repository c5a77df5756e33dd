"""The kernel sets: their requirements of a machine and their types. Every set has every operator."""

from typing import Literal

import msgspec

from appliance.catalog.formats import CODED_LAYOUTS, INTEGER_LAYOUTS

# compiled here: by a compiler for that device, with its logic run by an emulator or an interpreter, and on no device.
SupportClass = Literal["tested here", "compiled here", "untested"]
DeviceKind = Literal["cpu", "cuda", "rocm"]

# By which a pod asks for accelerators: the names of their device plugins.
KUBERNETES_RESOURCES: dict[DeviceKind, str] = {"cuda": "nvidia.com/gpu", "rocm": "amd.com/gpu"}

_CPU_LAYOUTS = ("f32", "f16", "bf16", *INTEGER_LAYOUTS, *CODED_LAYOUTS)
_FLOATS = ("f32", "bf16", "f16")  # of caches
_CPU_MODULE = "appliance.kernels.cpu.kernel_set"
_GPU_MODULE = "appliance.kernels.gpu.kernel_set"
_AVX2_FLAGS = ("avx2", "f16c", "fma")
_AVX512_FLAGS = (*_AVX2_FLAGS, "avx512bw", "avx512dq", "avx512f", "avx512vl")
_AVX512_VNNI_FLAGS = (*_AVX512_FLAGS, "avx512_vnni")
_AVX512_BF16_FLAGS = (*_AVX512_VNNI_FLAGS, "avx512_bf16")
_AMX_FLAGS = (*_AVX512_VNNI_FLAGS, "amx_bf16", "amx_int8", "amx_tile")


MODELLING = "transformers"  # the set that runs modelling code


class MemoryMargin(msgspec.Struct, frozen=True):
    """Memory of a device that is kept free for something besides the engine's own items."""

    size_bytes: int
    purpose: str


MEMORY_MARGINS: dict[DeviceKind, MemoryMargin] = {
    "cpu": MemoryMargin(1 << 28, "code, tokenizer and request state of two processes"),
    "cuda": MemoryMargin(1 << 29, "what is lost between allocations"),
    "rocm": MemoryMargin(1 << 29, "what is lost between allocations"),
}


MODELLING_BYTES = 1 << 29  # of torch and transformers in the engine's process


class KernelSetFacts(msgspec.Struct, frozen=True):
    """One kernel set; profiles say which sets are preferred. module: its Python module, whose `load(name)` returns the
    set; None where this version does not have it."""

    name: str
    device: DeviceKind
    support: SupportClass
    module: str | None
    required_flags: tuple[str, ...] = ()  # of the CPU, as /proc/cpuinfo spells them
    layouts: tuple[str, ...] = _CPU_LAYOUTS
    kv_dtypes: tuple[str, ...] = (*_FLOATS, "int8", "fp8_e4m3", "fp8_e5m2")
    block_sizes: tuple[int, ...] = (8, 16, 32, 64, 128)
    default_block_size: int = 16
    can_quantize_activations: bool = True
    rounds_f8_inputs: bool = False  # of FP8 weights with a scale a row, to e4m3, where the device multiplies these
    can_screen_logits: bool = True
    activation_dtypes: tuple[str, ...] = ("f32",)
    integer_activation_bytes: int = 2  # of one activation multiplied with integer weights; 1 with VNNI
    panel: int = 16  # rows of a weight and elements of a KV head are padded to this
    uses_torch: bool = False  # runs on torch, whose build has to know the device
    is_batch_invariant: bool = True  # False: a row rounds by how many rows are computed with it
    can_be_batch_invariant: bool = False  # rows round alike where that is asked for
    has_graphs: bool = False  # it runs operators one by one, and can capture several as a graph
    can_share: bool = True  # several ranks may run one program
    is_automatic: bool = True  # False: planned only if a profile or a spec names it
    runs: Literal["programs", "models"] = "programs"  # models: modelling code that is not ours, in one float type

    @property
    def is_built(self) -> bool:
        """True if this version has the set."""
        return self.module is not None

    @property
    def level(self) -> str | None:
        """The processor level of this set's native library; None if it has none."""
        return self.name.removeprefix("cpu-") if self.name.startswith("cpu-") else None

    @property
    def lends_weights(self) -> bool:
        """True if a head reads the weights that the model has packed (Lending)."""
        return self.level is not None

    @property
    def sleeps(self) -> bool:
        """True if the set gives memory back on demand, and takes it again (Sleeps)."""
        return self.level is not None or (self.uses_torch and self.runs == "programs")

    @property
    def moves_experts(self) -> bool:
        """True if experts can be put in other ranks while an engine serves."""
        return self.level is not None

    @property
    def spreads_experts(self) -> bool:
        """True if replicas can have the experts of a model among them, in memory that they share."""
        return self.can_share and not self.uses_torch

    @property
    def links_ranks(self) -> bool:
        """True if ranks exchange columns as messages, so that they may be on several machines; else they share the
        memory of one."""
        return self.can_share and self.uses_torch

    @property
    def can_share_prefixes(self) -> bool:
        """True if decodes that begin alike read what they share once for all (cascade attention)."""
        return self.level is not None


def _on_torch(
    name: str, device: DeviceKind, support: SupportClass, *, is_automatic: bool = True, rounds_f8_inputs: bool = True
) -> KernelSetFacts:
    """One executor of step programs on torch. On the CPU it is there so that its logic is tested."""
    return KernelSetFacts(
        name,
        device,
        support,
        _GPU_MODULE,
        block_sizes=(16, 32, 64, 128),
        default_block_size=64,
        can_quantize_activations=False,
        rounds_f8_inputs=rounds_f8_inputs,
        can_screen_logits=False,
        activation_dtypes=("bf16", "f16", "f32"),
        panel=1,
        uses_torch=True,
        is_batch_invariant=False,
        can_be_batch_invariant=True,
        has_graphs=True,
        is_automatic=is_automatic,
    )


_TABLE = (
    KernelSetFacts(
        "reference", "cpu", "tested here", "appliance.kernels.reference.kernel_set", is_automatic=False, panel=1,
        can_screen_logits=False, is_batch_invariant=False,
    ),
    KernelSetFacts(
        MODELLING, "cpu", "tested here", "appliance.kernels.modelling.kernel_set", is_automatic=False, panel=1,
        layouts=("f32", "f16", "bf16"), kv_dtypes=_FLOATS, can_quantize_activations=False, can_screen_logits=False,
        is_batch_invariant=False, can_share=False,
        activation_dtypes=("f32", "bf16", "f16"), runs="models",
    ),
    KernelSetFacts("cpu-generic", "cpu", "tested here", _CPU_MODULE),
    KernelSetFacts("cpu-avx2", "cpu", "tested here", _CPU_MODULE, required_flags=_AVX2_FLAGS),
    KernelSetFacts("cpu-avx512", "cpu", "tested here", _CPU_MODULE, required_flags=_AVX512_FLAGS),
    KernelSetFacts("cpu-avx512_vnni", "cpu", "tested here", _CPU_MODULE, required_flags=_AVX512_VNNI_FLAGS,
                   integer_activation_bytes=1),
    KernelSetFacts("cpu-avx512_bf16", "cpu", "tested here", _CPU_MODULE, required_flags=_AVX512_BF16_FLAGS,
                   integer_activation_bytes=1),
    KernelSetFacts("cpu-amx", "cpu", "compiled here", _CPU_MODULE, required_flags=_AMX_FLAGS,
                   integer_activation_bytes=1),
    _on_torch("torch", "cpu", "tested here", is_automatic=False),
    _on_torch("cuda", "cuda", "compiled here"),
    _on_torch("rocm", "rocm", "compiled here", rounds_f8_inputs=False),  # gfx942 has an FP8 of its own
)  # fmt: skip

KERNEL_SETS: dict[str, KernelSetFacts] = {entry.name: entry for entry in _TABLE}


def torch_obstacle(entry: KernelSetFacts, torch: str | None) -> str:
    """Says why a set cannot run on the installed torch; empty if it can, or if nothing is known of it.

    torch: its version with the build behind a plus sign, such as 2.13.0+cu130, where nothing is a build for CUDA; empty
    if it is not installed; None if nothing is known.
    """
    if not entry.uses_torch or torch is None:
        return ""
    if not torch:
        return f"it needs torch; pip install 'appliance[{entry.name}]'"
    build = torch.partition("+")[2]
    fits = {"cpu": True, "cuda": not build or build.startswith("cu"), "rocm": build.startswith("rocm")}
    needed = f"it needs a torch for {entry.device}, and {torch} is installed; pip install 'appliance[{entry.name}]'"
    return "" if fits[entry.device] else needed
