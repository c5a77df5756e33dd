"""Pass `memory`, the layers whose matrices stay in host memory and are copied to the device in each step."""

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from appliance.base.units import format_size
from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger
from appliance.plan.parallel_types import ParallelPlan
from appliance.plan.program import PlannedProgram
from appliance.plan.types import MemoryItem
from appliance.program.streamed_layers import NUM_BUFFERS, streamable_matrices

PATH, RULE = "hardware.memory.cpu_offload", "plan/offload"
LINK_BYTES_PER_S = 25e9  # what copies of pinned memory reach over 16 lanes of PCIe 4.0; 5.0 has twice as much


class Offload(msgspec.Struct, frozen=True):
    """layers: of which the matrices stay on the host. host_bytes: of all of them. buffer_bytes: of the device, for two
    of them."""

    layers: tuple[int, ...] = ()
    host_bytes: int = 0
    buffer_bytes: int = 0

    @property
    def seconds(self) -> float:
        """The time of their copies, of a step."""
        return self.host_bytes / LINK_BYTES_PER_S

    @property
    def spared_bytes(self) -> int:
        """Returns what a device has less to hold."""
        return self.host_bytes - self.buffer_bytes

    def host_items(self) -> tuple[MemoryItem, ...]:
        """Returns what the host keeps in memory that is never paged out."""
        if not self.layers:
            return ()
        formula = f"the matrices of {len(self.layers)} layers, which the device copies in each step"
        return (MemoryItem(name="offloaded", size_bytes=self.host_bytes, formula=formula),)


NOTHING = Offload()


def plan_offload(
    inputs: PlanInputs, program: PlannedProgram, kernels: KernelSetFacts, parallel: ParallelPlan, ledger: Ledger
) -> Offload:
    """Chooses layers, spread over the model so that the copy of each has the layers before it to run beside. Refuses
    what cannot be streamed, and what would spare nothing."""
    wanted = int(inputs.spec.hardware.memory.cpu_offload)
    if not wanted:
        return NOTHING
    reason = _refusal(inputs, program, kernels, parallel)
    if reason is not None:
        ledger.refuse(PATH, RULE, reason, allowed="0", hint=f"remove {PATH}")
        return NOTHING
    sizes = layer_bytes(program)
    found = next((each for each in _choices(sizes) if each.host_bytes <= wanted), None)
    if found is None or found.spared_bytes <= 0:
        least = min((each.host_bytes for each in _choices(sizes) if each.spared_bytes > 0), default=0)
        message = f"{format_size(wanted)} hold too few layers: two of them have buffers on the device all the same"
        allowed = f"0, or at least {format_size(least)}" if least else "0"
        ledger.refuse(PATH, RULE, message, allowed=allowed, hint=f"write more, or remove {PATH}")
        return NOTHING
    reason = (
        f"{format_size(found.host_bytes)} of {len(found.layers)} layers within {format_size(wanted)} of host memory: "
        f"the device holds {format_size(found.spared_bytes)} less, and each step copies them, about "
        f"{found.seconds * 1e3:,.1f} ms at {LINK_BYTES_PER_S / 1e9:.0f} GB/s"
    )
    ledger.take("kernels.streamed_layers", PATH, found.layers, reason)
    return found


def layer_bytes(program: PlannedProgram) -> dict[int, int]:
    """Returns the bytes of the matrices of each layer that can be streamed, in the order of the layers."""
    sizes: Counter[int] = Counter()
    for name, layer in streamable_matrices(program.program).items():
        sizes[layer] += program.sizes.get(name, 0)
    return dict(sorted(sizes.items()))


def _choices(sizes: dict[int, int]) -> Iterator[Offload]:
    """Yields what may be chosen, from all layers to those that still need both buffers."""
    layers = [layer for layer, size in sizes.items() if size]
    for count in range(len(layers), NUM_BUFFERS, -1):
        chosen = _spread(layers, count)
        largest = max(sizes[layer] for layer in chosen)
        yield Offload(chosen, sum(sizes[layer] for layer in chosen), NUM_BUFFERS * largest)


def _spread(layers: Sequence[int], count: int) -> tuple[int, ...]:
    """Returns so many of the layers, evenly, with the last one."""
    return tuple(layers[(at + 1) * len(layers) // count - 1] for at in range(count))


def _refusal(
    inputs: PlanInputs, program: PlannedProgram, kernels: KernelSetFacts, parallel: ParallelPlan
) -> str | None:
    if not kernels.uses_torch or not kernels.has_graphs:
        return f"kernel set {kernels.name} on {inputs.facts.name} computes from the memory in which weights lie"
    if program.is_outline:
        return "the model's program is not known, so no layer of it can be streamed"
    if parallel.num_ranks > 1:
        return f"{parallel.num_ranks} ranks do not stream layers in this version"
    limit = inputs.facts.memory.limit_bytes
    if inputs.profile.device != "cpu" and inputs.spec.hardware.memory.cpu_offload > limit:
        return f"{inputs.facts.name} has {format_size(limit)} of host memory"
    if inputs.spec.model.enable_sleep_mode:
        return "a model whose layers are streamed does not sleep in this version (model.enable_sleep_mode)"
    return None
