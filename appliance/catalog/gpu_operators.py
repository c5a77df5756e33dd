"""Who runs each operator in a set on torch: known without torch, so that a plan can say it."""

from typing import Final, Literal

GpuImplementation = Literal["triton", "torch", "reference"]

# Of ours, in kernels/gpu/with_triton.py. Products of more than 64 rows are the vendor's library's, by torch.
BY_TRITON: Final = frozenset({
    "Activation", "Embed", "Experts", "GatedActivation", "GatherRows", "HeadNorm", "KvWrite", "LayerNorm", "Linear",
    "PagedAttention", "RmsNorm", "Rope",
})  # fmt: skip
# By torch's own functions, in kernels/gpu/operators.
BY_TORCH: Final = BY_TRITON | {
    "AdapterEmbed", "AdapterExperts", "AdapterLinear", "Add", "Copy", "GatedAdd", "HeadLinear",
    "Scale", "ScaleByWeight", "SoftCap",
}  # fmt: skip


def gpu_implementation(operator: str, *, with_triton: bool) -> GpuImplementation:
    """Returns who runs the operators of a record, by its name: what has neither takes the oracle's function, in f32."""
    if with_triton and operator in BY_TRITON:
        return "triton"
    return "torch" if operator in BY_TORCH else "reference"
