"""Who runs each operator in a set on torch: known without torch, so that a plan can say it."""

from collections.abc import Mapping
from typing import Final, Literal

FEW_ROWS: Final = 64  # of a product by a kernel of ours; the vendor's library multiplies more

# Generations whose tiles are known (kernels/gpu/triton/architectures.py).
GPU_ARCHITECTURES: Final = (
    "sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120", "gfx1100", "gfx90a", "gfx942", "gfx950",
)  # fmt: skip
F8_GENERATIONS: Final = frozenset({"sm89", "sm90", "sm100", "sm103", "sm120"})  # that multiply e4m3 with e4m3

GpuImplementation = Literal["triton", "torch", "library", "reference"]

# Of ours, in kernels/gpu/with_triton.py. Products of more rows are the vendor's library's, by torch.
BY_TRITON: Final = frozenset({
    "Activation", "AdapterLinear", "Embed", "Experts", "GatedActivation", "GatedDelta", "GatherRows", "HeadLinear",
    "HeadNorm", "KvWrite", "LayerNorm", "Linear", "MixExperts", "PagedAttention", "RgLru", "RmsNorm", "Rope",
    "ShortConv", "StateSpace",
})  # fmt: skip
_WITH_STATES: Final = {"GatedDelta", "RgLru", "ShortConv", "StateSpace"}
# By torch's own functions, in kernels/gpu/operators.
BY_TORCH: Final = (BY_TRITON - _WITH_STATES) | {
    "AdapterEmbed", "AdapterExperts", "Add", "Copy", "GatedAdd", "Meet",
    "PlaceExperts", "Scale", "ScaleByWeight", "SoftCap",
}  # fmt: skip


# By the library that moves columns between devices: NCCL, RCCL, or gloo on torch's CPU device.
BY_LIBRARY: Final = frozenset({"Gather"})


def gpu_implementation(operator: str, *, with_triton: bool) -> GpuImplementation:
    """Returns who runs the operators of a record, by its name: what has neither takes the oracle's function, in f32."""
    if with_triton and operator in BY_TRITON:
        return "triton"
    if operator in BY_LIBRARY:
        return "library"
    return "torch" if operator in BY_TORCH else "reference"


def gpu_refusals(operator: str, *, with_triton: bool) -> Mapping[str, str]:
    """Returns why the others do not run the operators of a record, by who they are."""
    chosen = gpu_implementation(operator, with_triton=with_triton)
    floor = "the oracle's function, in f32"
    if chosen == "library":
        return {"triton": "other ranks have the columns", "torch": "other ranks have the columns"}
    if chosen == "reference":
        return {"triton": "no kernel of ours does it yet", "torch": "no function of ours does it yet"}
    no_kernel = "no kernel of ours does it yet" if operator not in BY_TRITON else "Triton compiles for GPUs"
    if chosen == "torch":
        return {"triton": no_kernel, "reference": floor}
    if operator == "Linear":
        return {"library": f"only above {FEW_ROWS} rows, where it is faster", "reference": floor}
    if operator == "PagedAttention":
        flash = "not in this version: 2 needs pages of 256 tokens, 3 takes memory that no plan counts (decision 0024)"
        return {"flash-attn": flash, "torch": "several kernels in place of one", "reference": floor}
    return {"torch": "several kernels in place of one", "reference": floor}
