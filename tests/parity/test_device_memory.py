"""What a set on torch holds after its start against its plan, within 2 %: every storage that lives is counted."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as GgmlType

from appliance.catalog.formats import LOAD_QUANTIZATIONS
from appliance.checkpoint.read import read_model_facts
from appliance.engine.backend import load_backend
from appliance.engine.core.config import SchedulerConfig
from appliance.kernels.gpu.kernel_set import GpuExecutable, GpuKernelSet
from appliance.kernels.gpu.matrices import DenseMatrix
from appliance.kernels.gpu.sizes import step_limits
from appliance.plan.boot import MEASURED_ITEMS
from appliance.plan.prepare import prepare
from appliance.program.device_memory import kernel_bytes
from appliance.program.head_matrices import head_matrices
from tests.parity.conftest import Checkpoint, Write
from tests.parity.harness import bind, cache_of, execution_of, precision

SPEC = """
api_version: appliance/v1
kind: Deployment
name: tiny
model: {{source: {source}, max_model_len: 64, skip_tokenizer_init: true, quantization: {quantization}, dtype: {dtype}}}
hardware: {{kernels: {{kernel_set: torch, quantize_activations: false}}}}
"""
ROUNDING = 4096  # bytes: tiny models have tables of a few numbers beside what counts
NEAR = 0.02


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "gpt-oss", "deepseek3", "mixtral", "qwen3_next"])
def test_a_started_set_holds_what_is_planned(
    name: str, dtype: str, tiny: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    check(tiny(name).folder, tmp_path, "auto", dtype, cache_of(name))


@pytest.mark.parametrize(
    ("name", "kv_dtype"), [("llama", "int8"), ("llama", "fp8"), ("gemma2", "fp8"), ("deepseek3", "fp8")]
)
def test_caches_of_8_bits_take_what_is_planned(
    name: str, kv_dtype: str, tiny: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    overrides = (*cache_of(name), f"cache.dtype={kv_dtype}")
    check(tiny(name).folder, tmp_path, "auto", "bfloat16", overrides)


@pytest.mark.parametrize(
    ("name", "quantization"), [("llama", "int8"), ("llama", "int4"), ("llama", "fp8"), ("deepseek3", "int8")]
)
def test_quantized_weights_take_what_is_planned(
    name: str, quantization: str, tiny: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    check(tiny(name).folder, tmp_path, quantization, "float32", cache_of(name))


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_0", "Q8_0", "Q4_K", "Q6_K"])
def test_blocks_take_what_is_planned(kind: str, written: Write, tmp_path: Path) -> None:
    check(written("llama", kind, lambda _: GgmlType[kind]).path, tmp_path, "auto", "float32", cache_of("llama"))


def test_slots_of_adapters_make_the_arena_longer(tiny: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    check(tiny("llama").folder, tmp_path, "auto", "float32", (*cache_of("llama"), "lora={max_loras: 2, max_rank: 8}"))


def check(source: Path, folder: Path, quantization: str, dtype: str, overrides: tuple[str, ...]) -> None:
    spec = folder / "deployment.yaml"
    spec.write_text(SPEC.format(source=source, quantization=quantization, dtype=dtype))
    plan = prepare(spec, overrides).plan
    planned = {item.name: item.size_bytes for item in plan.memory[0].items if item.name in MEASURED_ITEMS}
    before = storages()
    backend = load_backend(plan, SchedulerConfig.from_plan(plan), lambda *_: None)
    measured = dict(backend.executable.memory_bytes)
    for name, size in planned.items():
        assert measured[name] == pytest.approx(size, rel=NEAR, abs=ROUNDING), name
    held = sum(size for place, size in storages().items() if place not in before)
    empty = sum(planned.get(name, 0) for name in ("adapters",))  # an adapter is copied when it is put
    staging = sum(item.size_bytes for item in plan.memory[0].host_items) or staging_of(backend.executable)
    assert held - staging == pytest.approx(sum(planned.values()) - empty, rel=NEAR, abs=2 * ROUNDING)
    backend.executable.close()


def test_matrices_by_head_are_made_floats_of_once(tiny: Callable[[str], Checkpoint]) -> None:
    facts = read_model_facts(tiny("deepseek3").folder)
    form, _ = LOAD_QUANTIZATIONS["int8"]["linear"]
    executable = bind(facts, GpuKernelSet("torch"), precision(facts, quantize=form))
    assert isinstance(executable, GpuExecutable)
    by_head = head_matrices(executable._program)
    assert len(by_head) == 6  # of keys and of values, in three layers
    coded = {name for name, matrix in executable._matrices.items() if not isinstance(matrix, DenseMatrix)}
    assert coded
    assert not coded & by_head


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt-oss"])
def test_what_kernels_hand_on_is_what_they_hold(name: str, tiny: Callable[[str], Checkpoint]) -> None:
    facts = read_model_facts(tiny(name).folder)
    execution = execution_of(max_model_len=64, block_size=16)
    executable = bind(facts, GpuKernelSet("torch", with_triton=True), execution=execution)
    assert isinstance(executable, GpuExecutable)
    kit = executable._kit
    assert kit is not None
    processors = kit.num_processors  # type: ignore[attr-defined]  # of the kit with Triton's kernels
    planned = kernel_bytes([executable._program], step_limits(execution.limits), 4, processors)
    assert kit.size_bytes == planned > 0


def staging_of(executable: object) -> int:
    assert isinstance(executable, GpuExecutable)
    return executable._inputs.size_bytes


def storages() -> dict[int, int]:
    """The bytes of every storage that some tensor has, by its address."""
    gc.collect()
    found: Iterator[torch.Tensor] = (each for each in gc.get_objects() if issubclass(type(each), torch.Tensor))
    dense = (each.untyped_storage() for each in found if each.layout == torch.strided)  # others may be left of tests
    return {each.data_ptr(): each.nbytes() for each in dense}
