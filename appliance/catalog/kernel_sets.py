"""The kernel sets: their requirements of a machine and their types. Every set has every operator."""

from typing import Literal

import msgspec

from appliance.catalog.formats import CODED_LAYOUTS, INTEGER_LAYOUTS

SupportClass = Literal["tested here", "compiled here", "untested"]
DeviceKind = Literal["cpu", "cuda", "rocm"]

_CPU_LAYOUTS = ("f32", "f16", "bf16", *INTEGER_LAYOUTS, *CODED_LAYOUTS)
_CPU_MODULE = "appliance.kernels.cpu.kernel_set"
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
    "cuda": MemoryMargin(1 << 30, "driver context, libraries and fragmentation"),
    "rocm": MemoryMargin(1 << 30, "driver context, libraries and fragmentation"),
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
    kv_dtypes: tuple[str, ...] = ("f32", "bf16", "f16")
    block_sizes: tuple[int, ...] = (8, 16, 32, 64, 128)
    default_block_size: int = 16
    can_quantize_activations: bool = True
    can_screen_logits: bool = True
    activation_dtypes: tuple[str, ...] = ("f32",)
    integer_activation_bytes: int = 2  # of one activation multiplied with integer weights; 1 with VNNI
    panel: int = 16  # rows of a weight and elements of a KV head are padded to this
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


_TABLE = (
    KernelSetFacts(
        "reference", "cpu", "tested here", "appliance.kernels.reference.kernel_set", is_automatic=False, panel=1,
        can_screen_logits=False,
    ),
    KernelSetFacts(
        MODELLING, "cpu", "tested here", "appliance.kernels.modelling.kernel_set", is_automatic=False, panel=1,
        layouts=("f32", "f16", "bf16"), can_quantize_activations=False, can_screen_logits=False,
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
    KernelSetFacts(
        "cuda-triton", "cuda", "untested", None, block_sizes=(8, 16, 32),
        kv_dtypes=("f32", "bf16", "f16", "fp8_e4m3", "fp8_e5m2"), can_quantize_activations=False,
        can_screen_logits=False,
        activation_dtypes=("bf16", "f16", "f32"), panel=1,
    ),
    KernelSetFacts(
        "rocm-triton", "rocm", "untested", None, block_sizes=(8, 16, 32),
        kv_dtypes=("f32", "bf16", "f16", "fp8_e4m3"), can_quantize_activations=False,
        can_screen_logits=False,
        activation_dtypes=("bf16", "f16", "f32"), panel=1,
    ),
)  # fmt: skip

KERNEL_SETS: dict[str, KernelSetFacts] = {entry.name: entry for entry in _TABLE}
