"""What it costs that caches keep the tokens which windows have left (`cache.disable_hybrid_kv_cache_manager`)."""

import msgspec

from appliance.base.units import format_size
from appliance.plan.ledger import Ledger
from appliance.plan.memory_needs import MemoryNeeds
from appliance.plan.sizes import kv_block_bytes, kv_sizes
from appliance.program.kv_blocks import blocks_held
from appliance.program.operators import PagedAttention, StepProgram

PATH = "cache.disable_hybrid_kv_cache_manager"


def say_full_caches(needs: MemoryNeeds, held_bytes: int, ledger: Ledger) -> None:
    """Records the price beside windows that give blocks back. Refuses it for a model with recurrent states.

    held_bytes: of a sequence of the longest context, as it is planned.
    """
    program = needs.program.program
    if program.states:
        message = "the model keeps recurrent states, which no cache of tokens can hold"
        ledger.refuse(PATH, "plan/full-caches", message, allowed="false", hint=f"remove {PATH}")
        return
    with_windows = _with_windows(program)
    if with_windows.caches == program.caches:
        ledger.decide(PATH, True, "model", "it changes nothing: no layer has a window")
        return
    lanes = kv_sizes(with_windows, needs.precision.kv_dtype, needs.program.kernels).lanes_per_token
    windows, length = with_windows.kv_layout().windows, needs.context.limit
    block_bytes = kv_block_bytes(lanes, needs.block_size, needs.program.kernels)
    spared = blocks_held(windows, needs.block_size, length) * block_bytes
    reason = (
        f"layers with windows keep all tokens: a sequence of {length:,} holds {format_size(held_bytes)} of cache, and "
        f"{format_size(spared)} if windows give back what they have left"
    )
    ledger.take(PATH, PATH, True, reason)


def _with_windows(program: StepProgram) -> StepProgram:
    """Returns the program with caches that reach as far as the attention that reads them."""
    reaches = {op.cache: op.window or op.chunk for op in program.operators if isinstance(op, PagedAttention)}
    caches = tuple(msgspec.structs.replace(shape, window=reaches.get(at)) for at, shape in enumerate(program.caches))
    return msgspec.structs.replace(program, caches=caches, layout=None)
