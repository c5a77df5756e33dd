"""Programs of a few operators, fed through an embedding table and read through the logits slot."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from appliance.kernels.codes import CODE_VALUES
from appliance.kernels.execution import Execution, ExecutionLimits, Numerics, Placement
from appliance.kernels.interface import Executable, KernelSet, StepInputs
from appliance.kernels.layout import CODED_LAYOUTS, CanonicalWeight, Layout
from appliance.program.caches import KvShape
from appliance.program.operators import Embed, GatherRows, Operator, StepProgram
from appliance.program.slots import Extent, Slot, SlotType, Span
from appliance.program.states import StateShape

FLOATS = {Layout.F32: np.float32, Layout.F16: np.float16}
BITS = {Layout.INT8: 8, Layout.INT4: 4, Layout.INT5: 5, Layout.INT6: 6}
GROUP_UNITS = {Layout.INT5: 32, Layout.INT6: 16}  # columns that a group is a multiple of


def to_bf16(values: np.ndarray) -> np.ndarray:
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def dense(values: np.ndarray, layout: Layout = Layout.F32) -> CanonicalWeight:
    """values [N, K] in a dense layout."""
    data = to_bf16(values) if layout is Layout.BF16 else values.astype(FLOATS[layout])
    return CanonicalWeight(layout, values.shape[0], values.shape[1], data)


def random_quantized(
    rng: np.random.Generator,
    layout: Layout,
    n: int,
    k: int,
    group_size: int,
    offset: str = "none",
    scale_type: type = np.float16,
) -> CanonicalWeight:
    """offset: "none", "symmetric" (minus the middle of the codes, in scales) or "free"."""
    bits = BITS[layout]
    middle = 1 << (bits - 1)
    step = 1 / middle
    if layout is Layout.INT8:
        data = rng.integers(-128, 128, (n, k), dtype=np.int8)
    elif layout is Layout.INT4:
        data = rng.integers(0, 256, (n, k // 2), dtype=np.uint8)
    else:
        data = rng.integers(0, 1 << bits, (n, k), dtype=np.uint8)
    scale = (rng.uniform(0.5, 1.5, (n, k // group_size)) * step / k**0.5).astype(scale_type)
    offsets = {
        "none": None,
        "symmetric": (-middle * scale.astype(np.float32)).astype(scale_type),
        "free": (rng.uniform(-1, 0, scale.shape) / k**0.5).astype(scale_type),
    }
    return CanonicalWeight(layout, n, k, data, scale, offsets[offset], group_size)


def random_sub_groups(
    rng: np.random.Generator, layout: Layout, n: int, k: int, sub_group_size: int, offset: str = "free"
) -> CanonicalWeight:
    """Groups of 256 with sub-groups. offset: "none", "symmetric" or "free"."""
    weight = random_quantized(rng, layout, n, k, 256, offset)
    sub_scale, sub_offset = rng.integers(-128, 128, (2, n, k // sub_group_size), dtype=np.int8)
    if offset == "symmetric":
        sub_offset = sub_scale
    return replace(
        weight,
        sub_scale=sub_scale,
        sub_offset=None if offset == "none" else sub_offset,
        sub_group_size=sub_group_size,
    )


def random_coded(
    rng: np.random.Generator, layout: Layout, n: int, k: int, group_size: int, scale_type: type = np.float32
) -> CanonicalWeight:
    """Codes that stand for floats, NaN left out; uint8 scales are e8m0."""
    if layout is Layout.F8:
        data = rng.integers(0, 128, (n, k), dtype=np.uint8) % 127 | rng.integers(0, 2, (n, k), dtype=np.uint8) << 7
    else:
        data = rng.integers(0, 256, (n, k // 2), dtype=np.uint8)
    most = np.nanmax(CODE_VALUES[layout])
    if scale_type is np.uint8:
        scale = rng.integers(118, 124, (n, k // group_size), dtype=np.uint8)
    else:
        scale = (rng.uniform(0.5, 1.5, (n, k // group_size)) * 2 / most / k**0.5).astype(scale_type)
    return CanonicalWeight(layout, n, k, data, scale, None, group_size)


def random_weight(
    rng: np.random.Generator, layout: Layout, n: int, k: int, group_size: int = 32, offset: str = "none"
) -> CanonicalWeight:
    if layout in CODED_LAYOUTS:
        return random_coded(rng, layout, n, k, group_size)
    if layout in BITS:
        return random_quantized(rng, layout, n, k, group_size, offset)
    return dense(rng.standard_normal((n, k)) / k**0.5, layout)


def whole(slot: Slot) -> Span:
    return Span(slot, 0, slot.width)


def execution_of(
    tokens: int = 64,
    *,
    seqs: int = 8,
    sampled: int | None = None,
    model_len: int = 1024,
    block_size: int = 16,
    num_blocks: int = 64,
    num_states: int = 0,
    kv_dtype: str = "f32",
    num_threads: int = 2,
    quantize: bool = False,
    screen_logits: bool = False,
) -> Execution:
    sizes = ExecutionLimits(
        max_num_batched_tokens=tokens,
        max_num_seqs=seqs,
        max_num_sampled=sampled or tokens,
        max_model_len=model_len,
        block_size=block_size,
        num_blocks=num_blocks,
        num_states=num_states,
    )
    return Execution(sizes, Numerics(kv_dtype, quantize), Placement(num_threads, screen_logits=screen_logits))


@dataclass
class Graph:
    """Collects slots, operators and weights."""

    operators: list[Operator] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    weights: dict[str, CanonicalWeight] = field(default_factory=dict)

    def slot(self, width: int, extent: Extent = Extent.TOKENS, dtype: SlotType = "f32") -> Slot:
        slot = Slot(len(self.slots), extent, width, dtype)
        self.slots.append(slot)
        return slot

    def weight(self, weight: CanonicalWeight) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = weight
        return name

    def vector(self, values: np.ndarray) -> str:
        return self.weight(dense(values.reshape(1, -1)))

    def given(self, values: np.ndarray) -> Slot:
        """Returns a slot whose row t is values[token_ids[t]]."""
        slot = self.slot(values.shape[1])
        self.operators.append(Embed(self.weight(dense(values)), slot))
        return slot

    def add(self, *operators: Operator) -> None:
        self.operators.extend(operators)

    def program(self, result: Slot, caches: Sequence[KvShape] = (), states: Sequence[StateShape] = ()) -> StepProgram:
        """Its logits are the token rows of `result` that a step samples."""
        logits = self.slot(result.width, Extent.SAMPLED)
        self.operators.append(GatherRows(result, logits))
        return StepProgram(tuple(self.operators), tuple(self.slots), logits, tuple(caches), tuple(states))


def int32(values: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.array(values, np.int32)


def plain_step(num_tokens: int, positions: Sequence[int] | None = None) -> StepInputs:
    """Tokens 0 .. T - 1 as one sequence without a cache; all rows sampled."""
    every = np.arange(num_tokens, dtype=np.int32)
    return StepInputs(
        token_ids=every,
        positions=every if positions is None else int32(positions),
        slot_mapping=np.full((1, num_tokens), -1, np.int32),
        query_start=int32([0, num_tokens]),
        seq_lens=int32([num_tokens]),
        block_tables=np.arange(64, dtype=np.int32).reshape(1, 1, 64),
        sampled_rows=every,
    )


def batch_step(
    token_ids: Sequence[Sequence[int]], cached: Sequence[int], tables: Sequence[Sequence[int]], block_size: int
) -> StepInputs:
    """Sequence s adds token_ids[s] after cached[s] tokens in blocks tables[s]; all rows sampled."""
    positions: list[int] = []
    slots: list[int] = []
    for tokens, start, table in zip(token_ids, cached, tables, strict=True):
        span = range(start, start + len(tokens))
        positions.extend(span)
        slots.extend(table[p // block_size] * block_size + p % block_size for p in span)
    lengths = [len(tokens) for tokens in token_ids]
    width = max(len(table) for table in tables)
    block_tables = np.full((len(tables), width), -1, np.int32)
    for row, table in enumerate(tables):
        block_tables[row, : len(table)] = table
    return StepInputs(
        token_ids=int32([t for tokens in token_ids for t in tokens]),
        positions=int32(positions),
        slot_mapping=int32(slots)[None],
        query_start=int32(np.concatenate(([0], np.cumsum(lengths)))),
        seq_lens=int32([start + n for start, n in zip(cached, lengths, strict=True)]),
        block_tables=block_tables[None],
        sampled_rows=np.arange(len(positions), dtype=np.int32),
    )


def bind(
    kernel_set: KernelSet,
    graph: Graph,
    program: StepProgram,
    execution: Execution,
) -> Executable:
    return kernel_set.bind(program, graph.weights, execution)


def logits_of(executable: Executable, step: StepInputs) -> np.ndarray:
    """Returns a copy of the logits of a step."""
    logits = executable.run(step)
    rows = [logits.row(at) for at in range(logits.num_rows)]
    return np.stack(rows) if rows else np.zeros((0, 0), np.float32)


def run_once(
    kernel_set: KernelSet, build: Callable[[Graph], Slot], step: StepInputs, execution: Execution
) -> np.ndarray:
    graph = Graph()
    program = graph.program(build(graph))
    executable = bind(kernel_set, graph, program, execution)
    result = logits_of(executable, step)
    executable.close()
    return result
