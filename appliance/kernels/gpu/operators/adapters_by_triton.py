"""What adapters change by Triton's kernels."""

from appliance.kernels.gpu.operators import adapters
from appliance.kernels.gpu.operators.adapters import DeviceRows
from appliance.kernels.gpu.step import DeviceStep
from appliance.kernels.gpu.triton.adapters import add_adapters
from appliance.kernels.gpu.triton_kit import TritonKit
from appliance.program.adapters import AdapterLinear


def adapter_linear(op: AdapterLinear, step: DeviceStep) -> None:
    """Low-rank maps of all adapters of a step at once; whole matrices and vectors by torch."""
    rows, kit = DeviceRows.of(op.x.slot.extent, step), step.bound.kit
    assert isinstance(kit, TritonKit), "a set with this function has it"
    if not rows.adapters.are_low_rank(op, rows.present):
        adapters.adapter_linear(op, step)
        return
    kind, table = rows.adapters.kind, rows.adapters.table(op)
    add_adapters(
        step.span(op.x), step.span(op.out), table, kind, rows.slots, rows.scales, kit.adapters(), op.max_rank,
        max(op.widths),
    )  # fmt: skip
