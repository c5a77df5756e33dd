"""What Triton's kernels need beside a step: the GPU's generation, their tiles, and memory for what they share out.

All is decided by tables, so that no start tunes. Shares and experts get their memory while a program is bound.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from appliance.kernels.execution import Execution
from appliance.kernels.gpu.device import Device
from appliance.kernels.gpu.matrices import DeviceMatrix
from appliance.kernels.gpu.sizes import step_limits
from appliance.kernels.gpu.triton.architectures import architecture
from appliance.kernels.gpu.triton.attention import AttentionOptions
from appliance.kernels.gpu.triton.attention_decode import DecodeTile, choose_decode
from appliance.kernels.gpu.triton.attention_prefill import PrefillTile, choose_prefill
from appliance.kernels.gpu.triton.experts import ExpertMatrices, ExpertWorkspace
from appliance.kernels.gpu.triton.launch import dependent
from appliance.kernels.gpu.triton_draws import DrawMemory
from appliance.kernels.gpu.triton_experts import ExpertMemory, expert_matrices
from appliance.program.caches import kv_scale_bytes
from appliance.program.device_memory import (
    ExpertShape,
    adapter_numbers,
    expert_shapes,
    product_numbers,
    rounded_sizes,
    share_numbers,
)
from appliance.program.operators import PagedAttention, StepProgram
from appliance.program.routing import Experts

_INTERPRETED = ("sm90", 4)  # the generation and the processors that tests without a GPU assume


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The kernels' arguments of one PagedAttention. decode: by the number of sequences."""

    options: AttentionOptions
    decode: Callable[[int], DecodeTile]
    prefill: PrefillTile


class TritonKit:
    """The arguments of kernels that a program's steps have in common."""

    def __init__(
        self,
        programs: Sequence[StepProgram],
        execution: Execution,
        dtype: torch.dtype,
        vectors: dict[str, torch.Tensor],
        device: Device,
    ) -> None:
        """vectors: f32, by the names in the programs. Raises ValueError for a GPU of an unknown generation."""
        self.arch, self.num_processors = generation_of(device)
        self.batch_invariant = batch_invariant = execution.numerics.batch_invariant
        self.has_dependent_launch = device.is_gpu and architecture(self.arch).has_dependent_launch
        limits, self._has_codes = execution.limits, kv_scale_bytes(execution.numerics.kv_dtype) > 0
        self._limits, self._dtype, self._vectors, self._device = limits, dtype, vectors, device
        operators = [op for program in programs for op in program.operators]
        self._attention = {id(op): self._plan(op) for op in operators if isinstance(op, PagedAttention)}
        sizes = step_limits(limits)
        processors = self.num_processors
        shares = 0 if batch_invariant else share_numbers(programs, sizes.num_seqs, processors)
        products = product_numbers(programs, sizes.num_tokens, processors, batch_invariant=batch_invariant)
        self.attention_workspace = device.zeros(shares, dtype=torch.float32)
        codes, scales = 0, 0
        if execution.numerics.quantize_activations:
            codes, scales = rounded_sizes(programs, sizes, dtype.itemsize, batch_invariant=batch_invariant)
        between = adapter_numbers(programs, sizes.num_tokens, sizes.num_sampled)
        self._adapted = device.zeros(between, dtype=torch.float32)
        self._rounded = device.zeros(codes, dtype=torch.uint8)
        self._row_scales = device.zeros(scales, dtype=torch.float32)
        self._parts = device.zeros(products, dtype=torch.float32)
        shapes = expert_shapes(programs)
        self._experts = {
            shape: ExpertMemory(shape, sizes.num_tokens, dtype, device, batch_invariant) for shape in shapes
        }
        self.draws = DrawMemory(limits.max_num_sampled, device)
        self._tables: dict[str, ExpertMatrices | None] = {}

    @property
    def size_bytes(self) -> int:
        experts = sum(memory.size_bytes for memory in self._experts.values())
        rounded = self._rounded.nbytes + self._row_scales.nbytes + self._adapted.nbytes
        return self.attention_workspace.nbytes + self._parts.nbytes + rounded + experts + self.draws.size_bytes

    def attention(self, op: PagedAttention) -> AttentionPlan:
        return self._attention[id(op)]

    @property
    def tile_rows(self) -> tuple[int, ...]:
        """The sizes of prefill tiles that the program's operators have."""
        return tuple(sorted({plan.prefill.rows for plan in self._attention.values()}))

    def parts(self, splits: int, rows: int, width: int) -> torch.Tensor | None:
        """Returns room for the shares of a product, f32 [splits, rows, width]; None where there is one."""
        return None if splits == 1 else self._parts[: splits * rows * width].view(splits, rows, width)

    def adapters(self) -> torch.Tensor:
        """Returns room for what adapters make of rows between their maps, f32."""
        return self._adapted

    def codes(self, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns room for rows that are rounded to e4m3: codes uint8 [rows, columns], and scales f32 [rows]."""
        return self._rounded[: rows * columns].view(rows, columns), self._row_scales[:rows]

    def rounded(self, rows: int, columns: int) -> torch.Tensor:
        """Returns room for few rows of rounded numbers, in the activations' type."""
        return self._rounded.view(self._dtype)[: rows * columns].view(rows, columns)

    def experts(self, op: Experts, num_tokens: int) -> ExpertWorkspace:
        """Returns the memory for a step of exactly so many tokens."""
        return self._experts[ExpertShape.of(op)].of(num_tokens)

    def expert_matrices(self, op: Experts, matrices: Mapping[str, DeviceMatrix]) -> ExpertMatrices | None:
        """Returns the weights of an operator; None if kernels do not know their form."""
        if op.up not in self._tables:
            self._tables[op.up] = expert_matrices(op, matrices, self._vectors)
        return self._tables[op.up]

    def has_experts(self, op: Experts, matrices: Mapping[str, DeviceMatrix]) -> bool:
        return self.expert_matrices(op, matrices) is not None

    def launches(self, *, is_decode: bool) -> AbstractContextManager[None]:
        """Kernels of a decode are short, so each begins while the one before it ends, where the GPU can do that."""
        return dependent(is_decode and self.has_dependent_launch)

    def _plan(self, op: PagedAttention) -> AttentionPlan:
        sizes = (op.num_heads // op.num_kv_heads, op.head_dim, op.value_width, self._dtype, self.arch)
        slopes = None if op.slopes is None else torch.tensor(op.slopes, device=self._device.name)
        sinks = None if op.sinks is None else self._vectors[op.sinks].flatten()
        options = AttentionOptions(op.num_heads, op.scale, op.window, op.soft_cap, op.chunk, sinks, slopes)

        def decode(num_seqs: int) -> DecodeTile:
            reach = min(self._limits.max_model_len, op.window or self._limits.max_model_len)
            most = (num_seqs, op.num_kv_heads, reach, self.num_processors)
            return choose_decode(*sizes, *most, self.batch_invariant, op.values_in_keys, self._has_codes)

        widths = (op.head_dim, op.value_width, self._limits.block_size)
        prefill = choose_prefill(
            *widths, self._dtype, self.arch, values_in_keys=op.values_in_keys, has_codes=self._has_codes
        )
        return AttentionPlan(options, functools.cache(decode), prefill)


def generation_of(device: Device) -> tuple[str, int]:
    """Returns a GPU's generation as compilers name it, and how many processors it has."""
    if not device.is_gpu:
        return _INTERPRETED
    facts = torch.cuda.get_device_properties(device.name)
    if torch.version.hip:
        return facts.gcnArchName.partition(":")[0], facts.multi_processor_count
    return f"sm{facts.major}{facts.minor}", facts.multi_processor_count
