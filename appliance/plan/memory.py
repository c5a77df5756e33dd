"""Pass `memory`: what a device holds, item by item, and what is left for the cache. Decides the context's length."""

from collections.abc import Iterator

import msgspec

from appliance.base.units import format_size
from appliance.catalog.kernel_sets import MEMORY_MARGINS, MODELLING_BYTES, KernelSetFacts
from appliance.plan.device_memory import collectives_item, device_bytes, host_items
from appliance.plan.full_caches import say_full_caches
from appliance.plan.graphs import graphs_item
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.plan.memory_needs import MemoryNeeds
from appliance.plan.program import PlannedProgram
from appliance.plan.screen import SCREEN, ScreenRequest
from appliance.plan.sizes import (
    kv_block_bytes,
    kv_sizes,
)
from appliance.plan.speculation import drafts_item
from appliance.plan.stages import handed_on_item
from appliance.plan.states import plan_states
from appliance.plan.step_memory import items_of_step, step_limits_of
from appliance.plan.swap import SwapUnits, plan_swap
from appliance.plan.types import (
    KvGroupPlan,
    MemoryItem,
    MemoryPlan,
    SwapPlan,
)
from appliance.plan.weight_memory import weights_item
from appliance.program.kv_blocks import blocks_held, longest_held
from appliance.program.operators import StepProgram

GIB = 1 << 30
CPU_AUTO_CACHE_BYTES = 4 * GIB  # vLLM's VLLM_CPU_KVCACHE_SPACE; the rest of the host's memory is not only ours
CPU_AUTO_CACHE_SHARE = 4  # where a quarter of the budget is more, that much


class PlannedMemory(msgspec.Struct, frozen=True):
    memory: tuple[MemoryPlan, ...]
    num_blocks: int
    num_snapshots: int | None  # None for a model without recurrent states
    num_draft_states: int | None
    max_model_len: int
    screen_logits: bool
    num_draft_blocks: int = 0  # of the draft model's cache
    swap: SwapPlan | None = None


class _Device(msgspec.Struct, frozen=True):
    """Budget and fixed parts of one rank's device."""

    total: int
    budget: int
    items: tuple[MemoryItem, ...]
    groups: tuple[KvGroupPlan, ...]
    block_bytes: int
    windows: tuple[int | None, ...]  # of each group of caches

    @property
    def left(self) -> int:
        return self.budget - sum(item.size_bytes for item in self.items)


def plan_memory(inputs: PlanInputs, needs: MemoryNeeds, ledger: Ledger) -> PlannedMemory:
    """Misfits are recorded in the ledger; the memory is then what would be planned with as little as is left."""
    device = _device(inputs, needs, ledger)
    sequences = needs.scheduler.max_num_seqs
    states = plan_states(inputs, _largest_states(needs.program), sequences, device.left, ledger)
    device = msgspec.structs.replace(device, items=(*device.items, *states.items))
    device, num_draft_blocks = _with_draft_cache(inputs, needs, device, ledger)
    units = SwapUnits(device.block_bytes, _largest_states(needs.program).state_bytes, needs.block_size)
    swap = plan_swap(inputs, units, device.left, ledger)
    on_host = (*swap.items, *needs.offload.host_items())
    if inputs.profile.device == "cpu":
        device, on_host = msgspec.structs.replace(device, items=(*device.items, *on_host)), ()
    else:
        on_host = (*host_items(_runs(needs), step_limits_of(needs)), *on_host)
    _say_groups(inputs, device, needs, ledger)
    length, num_blocks = _cache(inputs, needs, device, ledger)
    items = _with_screen(needs.screen, device, num_blocks, ledger)
    tokens = _tokens(device, needs, num_blocks, length)
    cache = MemoryItem(
        name="kv_cache",
        size_bytes=num_blocks * device.block_bytes,
        formula=f"{num_blocks:,} blocks x {format_size(device.block_bytes)} ({needs.block_size} tokens)",
    )
    ranks = needs.parallel.num_ranks
    plans = tuple(
        MemoryPlan(
            device="cpu" if inputs.profile.device == "cpu" else f"{inputs.profile.device}:{index}",
            device_bytes=device.total,
            budget_bytes=device.budget,
            items=(items[0], cache, *items[1:]),
            host_items=on_host,
            kv_bytes_per_token=sum(group.bytes_per_token for group in device.groups),
            kv_bytes_per_block=device.block_bytes,
            kv_groups=device.groups,
            num_tokens=tokens,
            num_full_sequences=round(tokens / length, 2),
        )
        for index in range(ranks)
    )
    has_screen = any(item.name == SCREEN for item in items)
    slots = states.num_snapshots, states.num_draft_states
    return PlannedMemory(
        *(plans, num_blocks, *slots, length),
        screen_logits=has_screen,
        num_draft_blocks=num_draft_blocks,
        swap=swap.plan,
    )


def _with_draft_cache(inputs: PlanInputs, needs: MemoryNeeds, device: _Device, ledger: Ledger) -> tuple[_Device, int]:
    """The device with the cache of the draft model, and how many blocks that has."""
    if needs.draft_model is None or inputs.spec.speculative is None or not needs.draft_model.program.program.caches:
        return device, 0
    item, num_blocks = needs.draft_model.cache_item(inputs.spec.speculative, device.left, ledger)
    return msgspec.structs.replace(device, items=(*device.items, item)), num_blocks


def _device(inputs: PlanInputs, needs: MemoryNeeds, ledger: Ledger) -> _Device:
    """Returns the device of the rank that needs most; with stages, each item is that of the largest one."""
    total = device_bytes(inputs)
    share = _utilization(inputs, ledger)
    program, kernels, dtype = needs.program, needs.program.kernels, needs.precision.kv_dtype
    sizes = kv_sizes(program.program, dtype, kernels)
    parts = program.stages or (program,)
    divided = program.num_ranks * len(parts)
    ranks = needs.parallel.num_ranks // divided  # among which what the program says is still divided
    lanes = max(kv_sizes(part.program, dtype, kernels).lanes_per_token for part in parts)
    items: dict[str, MemoryItem] = {}
    for number, part in enumerate(parts):
        adapters = needs.adapters if needs.adapters is None or not program.stages else needs.adapters.stage(number)
        for item in _items(inputs, msgspec.structs.replace(needs, program=part, adapters=adapters)):
            items[item.name] = max(items.get(item.name, item), item, key=lambda each: each.size_bytes)
    return _Device(
        total=total,
        budget=int(total * share),
        items=(*items.values(), *handed_on_item(program, needs.scheduler, num_ranks=needs.parallel.num_ranks)),
        groups=tuple(_share(group, ranks * len(parts)) for group in sizes.groups),
        block_bytes=kv_block_bytes(-(-lanes // ranks), needs.block_size, kernels),
        windows=program.program.kv_layout().windows,
    )


def _runs(needs: MemoryNeeds) -> list[PlannedProgram]:
    """Returns the program, and the one with places for adapters, if there is one."""
    return [needs.program] if needs.adapters is None else [needs.program, needs.adapters.program]


def _items(inputs: PlanInputs, needs: MemoryNeeds) -> Iterator[MemoryItem]:
    """Yields what a rank keeps but for its cache."""
    longest, ranks = needs.context.limit, needs.parallel.num_ranks
    yield weights_item(needs.program, needs.precision, needs.offload, ranks=ranks, longest=longest)
    yield from _screen(needs.screen)
    yield from items_of_step(inputs, needs)
    yield from graphs_item(needs.graphs, _runs(needs), needs.precision, needs.scheduler)
    yield from drafts_item(needs.speculation)
    yield from () if needs.draft_model is None else needs.draft_model.items()
    yield from () if needs.adapters is None else needs.adapters.items()
    yield from _context(inputs)
    yield from collectives_item(inputs, needs.parallel)
    yield _margin(inputs, needs.program.kernels)


def _largest_states(program: PlannedProgram) -> StepProgram:
    """Returns the program, or its stage with the largest states."""
    return max((part.program for part in program.stages or (program,)), key=lambda each: each.state_bytes)


def _say_groups(inputs: PlanInputs, device: _Device, needs: MemoryNeeds, ledger: Ledger) -> None:
    if len(device.windows) > 1:
        lanes = needs.program.program.kv_layout().num_lanes
        reason = (
            f"layers of one reach share block tables, {lanes} of them a block, so that windows give their blocks back"
        )
        ledger.decide("memory.kv_groups", len(device.windows), "model", reason)
    if inputs.spec.cache.disable_hybrid_kv_cache_manager:
        held = blocks_held(device.windows, needs.block_size, needs.context.limit) * device.block_bytes
        say_full_caches(needs, held, ledger)


def _share(group: KvGroupPlan, ranks: int) -> KvGroupPlan:
    return msgspec.structs.replace(group, bytes_per_token=-(-group.bytes_per_token // ranks))


def _utilization(inputs: PlanInputs, ledger: Ledger) -> float:
    path = "hardware.memory.utilization"
    if ledger.source_of(path) != "default":
        return ledger.take("memory.utilization", path, inputs.spec.hardware.memory.utilization)
    share = inputs.profile.defaults.memory_utilization
    return ledger.decide("memory.utilization", share, "profile", f"default of profile {inputs.profile.name}")


def _screen(request: ScreenRequest | None) -> tuple[MemoryItem, ...]:
    """Returns the copy of the output head if the spec asks for it: it is then kept whatever the size of the cache."""
    return (request.item,) if request is not None and request.is_wanted else ()


def _with_screen(
    request: ScreenRequest | None, device: _Device, num_blocks: int, ledger: Ledger
) -> tuple[MemoryItem, ...]:
    """The device's fixed parts, and the copy of the output head where it is wanted, or fits beside the cache."""
    is_kept = request is not None and request.decide(device.left - num_blocks * device.block_bytes, ledger)
    if request is None or not is_kept or request.is_wanted:
        return device.items
    return (device.items[0], request.item, *device.items[1:])


def _context(inputs: PlanInputs) -> tuple[MemoryItem, ...]:
    size, purpose = inputs.profile.context_bytes, "the driver's context, kernels and handles of libraries"
    return (MemoryItem(name="context", size_bytes=size, formula=purpose),) if size else ()


def _margin(inputs: PlanInputs, kernels: KernelSetFacts) -> MemoryItem:
    margin = MEMORY_MARGINS[inputs.profile.device]
    size, purpose = margin.size_bytes, margin.purpose
    if kernels.runs == "models":
        size, purpose = size + MODELLING_BYTES, f"{purpose}, torch and transformers"
    return MemoryItem(name="margin", size_bytes=size, formula=purpose)


def _cache(inputs: PlanInputs, needs: MemoryNeeds, device: _Device, ledger: Ledger) -> tuple[int, int]:
    """(max_model_len, number of blocks)."""
    wanted = needs.context.limit
    if not device.windows:
        return _length(inputs, wanted, ledger), _no_blocks(inputs, device, ledger)
    one_sequence = _blocks_of(device, needs, wanted)
    fits = max(0, device.left // device.block_bytes)
    num_blocks, path, reason = _wanted_blocks(inputs, needs, device, ledger)
    if num_blocks > fits:
        _report_misfit(inputs, device, num_blocks * device.block_bytes, path, reason, ledger)
        num_blocks = max(fits, 1)
    if num_blocks >= one_sequence:
        return _length(inputs, wanted, ledger), num_blocks
    return _shrunk(inputs, needs, device, num_blocks, ledger), num_blocks


def _no_blocks(inputs: PlanInputs, device: _Device, ledger: Ledger) -> int:
    """A model without keys and values has no blocks; a spec that gives it some is refused."""
    spec = inputs.spec
    for path, size in (
        ("cache.num_blocks", spec.cache.num_blocks),
        ("hardware.memory.kv_cache", spec.hardware.memory.kv_cache),
    ):
        if size != AUTO:
            message = "this model keeps no keys and values, so there is no cache to size"
            ledger.refuse(path, "plan/no-cache", message, allowed="auto", hint="write auto")
    if device.left < 0:
        _report_misfit(inputs, device, 0, "model.source", "no cache", ledger)
    return ledger.decide("cache.num_blocks", 0, "model", "the model has no cache of keys and values")


def _wanted_blocks(inputs: PlanInputs, needs: MemoryNeeds, device: _Device, ledger: Ledger) -> tuple[int, str, str]:
    """(blocks, spec path, what they are for): what the spec says, else what is left, on a CPU within reason."""
    spec, path = inputs.spec, "cache.num_blocks"
    if spec.cache.num_blocks != AUTO:
        return ledger.take(path, path, int(spec.cache.num_blocks)), path, "cache.num_blocks"
    if spec.hardware.memory.kv_cache != AUTO:
        path = "hardware.memory.kv_cache"
        blocks = max(1, int(spec.hardware.memory.kv_cache) // device.block_bytes)
        return ledger.take("cache.num_blocks", path, blocks), path, path
    fits = max(0, device.left // device.block_bytes)
    one_sequence = _blocks_of(device, needs, needs.context.limit)
    if inputs.profile.device != "cpu":
        ledger.decide(path, fits, "computed", "all that is left after weights and activations")
        return max(fits, 1), "model.source", "one block of cache"
    useful = 2 * needs.scheduler.max_num_seqs * one_sequence + _blocks_of_step(device, needs)
    share = max(CPU_AUTO_CACHE_BYTES, device.budget // CPU_AUTO_CACHE_SHARE)
    capped = min(useful, max(share // device.block_bytes, one_sequence))
    blocks = min(fits, capped)
    reasons = {
        fits: "all that is left after weights and activations",
        useful: "every sequence at full length, and as much again for kept prefixes",
    }
    least = format_size(CPU_AUTO_CACHE_BYTES)
    reason = reasons.get(blocks, f"on a CPU a quarter of the budget, but at least {least} and one full sequence")
    ledger.decide(path, blocks, "computed", reason)
    return max(blocks, 1), "model.source", "one block of cache"


def _blocks_of(device: _Device, needs: MemoryNeeds, length: int) -> int:
    """Returns how many blocks one sequence holds. Its prompt runs in small chunks if needed, else whole."""
    chunk = 1 if needs.scheduler.chunked_prefill else length
    return blocks_held(device.windows, needs.block_size, length, chunk)


def _blocks_of_step(device: _Device, needs: MemoryNeeds) -> int:
    """Returns how many more blocks windowed groups hold while the longest chunk of a prompt runs."""
    length, windowed = needs.context.limit, [window for window in device.windows if window is not None]
    chunk = min(length, needs.scheduler.max_num_batched_tokens)
    held = [blocks_held(windowed, needs.block_size, length, tokens) for tokens in (chunk, 1)]
    return held[0] - held[1]


def _tokens(device: _Device, needs: MemoryNeeds, num_blocks: int, length: int) -> int:
    """Returns how many tokens fit in sequences of `length`; full groups count to the token, and windows by block."""
    if not device.windows:
        return needs.scheduler.max_num_seqs * length
    windowed = [window for window in device.windows if window is not None]
    slots = (len(device.windows) - len(windowed)) * length
    slots += needs.block_size * blocks_held(windowed, needs.block_size, length)
    return num_blocks * needs.block_size * length // slots


def _report_misfit(inputs: PlanInputs, device: _Device, cache: int, path: str, reason: str, ledger: Ledger) -> None:
    fixed = ", ".join(f"{item.name} {format_size(item.size_bytes)}" for item in device.items)
    need = sum(item.size_bytes for item in device.items) + cache
    ledger.misfit(
        path,
        "plan/fit",
        f"{inputs.facts.name} cannot hold it: {fixed} and {reason} {format_size(cache)} need {format_size(need)};"
        f" the budget is {format_size(device.budget)} of {format_size(device.total)}",
    )


def _length(inputs: PlanInputs, length: int, ledger: Ledger) -> int:
    path = "model.max_model_len"
    if inputs.spec.model.max_model_len != AUTO:
        return ledger.take(path, path, length)
    return ledger.decide(path, length, "model", "the model's own limit, and it fits")


def _shrunk(inputs: PlanInputs, needs: MemoryNeeds, device: _Device, num_blocks: int, ledger: Ledger) -> int:
    """The context that the cache holds, where the spec allows less than it asked for."""
    path, wanted = "model.max_model_len", needs.context.limit
    is_chunked = needs.scheduler.chunked_prefill
    length = longest_held(device.windows, needs.block_size, num_blocks, wanted, is_chunked=is_chunked)
    if length >= 2048:
        length -= length % 1024
    needed = _blocks_of(device, needs, wanted) * device.block_bytes
    message = (
        f"a sequence of {wanted:,} tokens needs {format_size(needed)} of KV cache, and there is room"
        f" for {length:,} tokens ({format_size(num_blocks * device.block_bytes)})"
    )
    if needs.context.may_shrink:
        return ledger.decide(path, length, "computed", f"{message}; the model's own limit is {wanted:,}")
    if ledger.may_degrade("context", message):
        return ledger.decide(path, length, "computed", f"{message}; strictness allows less than was asked for")
    ledger.misfit(path, "plan/fit", message, allowed=f"auto, or at most {length}")
    return length
