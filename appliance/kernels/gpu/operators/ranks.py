"""What ranks exchange. Formulas: appliance.program.ranks."""

from appliance.kernels.gpu.step import DeviceStep
from appliance.program.ranks import Gather, Meet


def gather(op: Gather, step: DeviceStep) -> None:
    """Fills what other ranks have; of experts and tokens it is zero before (operators.experts, operators.dense)."""
    collectives = step.bound.collectives
    assert collectives is not None, "a program of several ranks is bound with them"
    if op.experts is None and not op.by_token:
        collectives.gather(step.span(op.x), op.starts)
    else:
        collectives.unite(step.span(op.x))


def meet(op: Meet, step: DeviceStep) -> None:
    """Does nothing: ranks have activations of their own."""
