"""A one-layer random transformer as a hand-written StepProgram, on the reference kernel set."""

import numpy as np

from appliance.engine.core.config import SchedulerConfig
from appliance.kernels.binding import load_kernel_set
from appliance.kernels.execution import Execution, ExecutionLimits, Graphs, Numerics, Placement
from appliance.kernels.interface import Executable
from appliance.kernels.layout import CanonicalWeight, Layout
from appliance.program.caches import KvShape
from appliance.program.operators import (
    Embed,
    GatherRows,
    KvWrite,
    Linear,
    Operator,
    PagedAttention,
    RmsNorm,
    StepProgram,
)
from appliance.program.slots import Extent, Slot, Span
from appliance.program.states import ShortConv, StateShape

VOCAB, WIDTH, HEADS, KV_HEADS, HEAD = 64, 32, 4, 2, 8
MAX_LEN = 96
NO_GRAPHS = Graphs()
TAPS = 7  # of the convolution


def _whole(slot: Slot) -> Span:
    return Span(slot, 0, slot.width)


def _program(vocab: int, windows: tuple[int | None, ...], *, has_states: bool) -> StepProgram:
    """A layer of attention for each window, all with the same weights; with states a convolution before them."""
    hidden, normed, heads, mixed = (Slot(index, Extent.TOKENS, WIDTH) for index in range(4))
    qkv = Slot(4, Extent.TOKENS, (HEADS + 2 * KV_HEADS) * HEAD)
    wanted, logits = Slot(5, Extent.SAMPLED, WIDTH), Slot(6, Extent.SAMPLED, vocab)
    q = Span(qkv, 0, HEADS * HEAD)
    k = Span(qkv, HEADS * HEAD, KV_HEADS * HEAD)
    v = Span(qkv, (HEADS + KV_HEADS) * HEAD, KV_HEADS * HEAD)
    attention: list[Operator] = []
    for cache, window in enumerate(windows):
        attention += [
            RmsNorm(x=hidden, weight="norm", out=normed, eps=1e-6),
            Linear(x=_whole(normed), weight="qkv", out=_whole(qkv)),
            KvWrite(k=k, v=v, cache=cache, num_kv_heads=KV_HEADS, head_dim=HEAD),
            PagedAttention(
                q=q,
                out=heads,
                cache=cache,
                num_heads=HEADS,
                num_kv_heads=KV_HEADS,
                head_dim=HEAD,
                scale=HEAD**-0.5,
                window=window,
            ),
            Linear(x=_whole(heads), weight="out", out=_whole(hidden), accumulate=True),
        ]
    convolution = ShortConv(x=_whole(hidden), weight="conv", out=_whole(hidden), state=0, kernel_size=TAPS, kind="silu")
    operators: tuple[Operator, ...] = (
        Embed(table="embed", out=hidden, position_table="positions"),
        *([convolution] if has_states else []),
        *attention,
        RmsNorm(x=hidden, weight="norm", out=mixed, eps=1e-6),
        GatherRows(x=mixed, out=wanted),
        Linear(x=_whole(wanted), weight="head", out=_whole(logits)),
    )
    caches = tuple(KvShape(KV_HEADS, HEAD, HEAD, window) for window in windows)
    states = (StateShape((TAPS - 1, WIDTH)),) if has_states else ()
    return StepProgram(operators, (hidden, normed, heads, mixed, qkv, wanted, logits), logits, caches, states)


def _weight(generator: np.random.Generator, rows: int, columns: int, scale: float) -> CanonicalWeight:
    data = (generator.standard_normal((rows, columns)) * scale).astype(np.float32)
    return CanonicalWeight(Layout.F32, rows, columns, data)


def tiny_executable(
    config: SchedulerConfig,
    vocab: int = VOCAB,
    max_len: int = MAX_LEN,
    kernel_set: str = "reference",
    windows: tuple[int | None, ...] = (None,),
    *,
    screen_logits: bool = False,
    num_threads: int = 1,
    noise: float = 0.0,
    graphs: Graphs = NO_GRAPHS,
) -> Executable:
    """noise: of a model that says nearly the same, as a share of its head."""
    generator = np.random.default_rng(3)
    weights = {
        "embed": _weight(generator, vocab, WIDTH, 1.0),
        "positions": _weight(generator, max_len, WIDTH, 0.5),
        "norm": CanonicalWeight(Layout.F32, 1, WIDTH, np.ones((1, WIDTH), np.float32)),
        "qkv": _weight(generator, (HEADS + 2 * KV_HEADS) * HEAD, WIDTH, 0.5),
        "out": _weight(generator, WIDTH, WIDTH, 0.5),
        "head": _weight(generator, vocab, WIDTH, 0.4),
        "conv": _weight(generator, 1, WIDTH * TAPS, 1.0),
    }
    other = _weight(np.random.default_rng(4), vocab, WIDTH, 0.4)
    weights["head"].data[:] += np.float32(noise) * other.data
    limits = ExecutionLimits(
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        max_num_sampled=config.max_num_sampled,
        max_model_len=config.max_model_len,
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        num_states=config.num_states,
    )
    execution = Execution(limits, Numerics("f32", False), Placement(num_threads, screen_logits=screen_logits), graphs)
    return load_kernel_set(kernel_set).bind(
        _program(vocab, windows, has_states=config.num_snapshots is not None), weights, execution
    )
