"""The memory plan against what the native set allocates: weights, cache, activations and workspace, within 10 %."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as GgmlType

from appliance.engine.backend import load_backend
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.swap_memory import SwapMemory
from appliance.kernels.interface import Moves
from appliance.kernels.lockstep import Lockstep
from appliance.kernels.ranks import SharedMemory
from appliance.plan.boot import TOLERANCE, BootReport, compare_boot
from appliance.plan.prepare import prepare
from appliance.program.shard_layout import Shard
from tests.engine.test_rank_group import machine_with
from tests.models.compressed import scheme, write_compressed
from tests.models.tiny import FAMILIES
from tests.models.tiny_pooled import POOLED, make_pooled
from tests.parity.conftest import Checkpoint, Write, kernel_set_names
from tests.parity.harness import CACHE, cache_of

SPEC = """
api_version: appliance/v1
kind: Deployment
name: tiny
model: {{source: {source}, max_model_len: 64, skip_tokenizer_init: true, quantization: {quantization}}}
"""

pytestmark = pytest.mark.skipif(len(kernel_set_names()) < 2, reason="no native kernel set is built here")


# Families whose tiny checkpoints have widths that do not divide into groups of 32.
NARROW = {
    "falcon_mamba", "granitemoehybrid", "jamba", "kimi_linear", "mamba", "nemotron_h", "qwen3_5", "qwen3_5_moe",
    "qwen3_next", "recurrentgemma", "zamba2",
}  # fmt: skip
CASES = [
    (name, quantization)
    for name in [*FAMILIES, "mistral-full"]  # heads of 24: joined rows that fill no panel
    for quantization in ("auto", "int8", "int4")
    if quantization == "auto" or name not in NARROW
]


@pytest.mark.parametrize(("name", "quantization"), CASES)
def test_a_plain_checkpoint_takes_the_planned_bytes(
    name: str, quantization: str, tiny: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    check(tiny(name).folder, tmp_path, quantization, cache_of(name))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("llama", "int8"), ("mistral-full", "int8"), ("llama", "fp8"), ("deepseek3", "fp8"), ("deepseek3", "fp8_e5m2")],
)
def test_a_cache_of_8_bits_takes_the_planned_bytes(
    name: str, dtype: str, tiny: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    check(tiny(name).folder, tmp_path, overrides=(f"cache.dtype={dtype}", *cache_of(name)))


@pytest.mark.parametrize("kernel_set", ["cpu-generic", "reference", "torch"])
@pytest.mark.parametrize(
    ("name", "dtype"), [("llama", "int8"), ("gpt-oss", "auto"), ("qwen3_next", "auto"), ("mamba2", "auto")]
)
def test_a_place_of_swap_space_has_the_bytes_that_move(
    kernel_set: str, name: str, dtype: str, tiny: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    spec = tmp_path / "deployment.yaml"
    spec.write_text(SPEC.format(source=tiny(name).folder, quantization="auto"))
    wanted = ("hardware.memory.swap_space=4MiB", f"hardware.kernels.kernel_set={kernel_set}", f"cache.dtype={dtype}")
    plan = prepare(spec, (*wanted, *cache_of(name))).plan
    swap, config = plan.cache.swap, SchedulerConfig.from_plan(plan)
    assert swap is not None
    executable = load_backend(plan, config, lambda *_: None).executable
    assert isinstance(executable, Moves)
    mover = executable.mover()
    assert swap.place_bytes == (mover.block_bytes or mover.state_bytes) > 0
    assert swap.num_state_places == -(-mover.state_bytes // swap.place_bytes)
    memory = SwapMemory(executable, config.num_swap_places, config.num_state_places)
    assert memory.size_bytes == swap.num_places * swap.place_bytes
    executable.close()


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_a_quantized_checkpoint_takes_the_planned_bytes(kind: str, written: Write, tmp_path: Path) -> None:
    check(written("llama", kind, lambda _: GgmlType[kind]).path, tmp_path)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [None, 32])
@pytest.mark.parametrize("symmetric", [False, True])
def test_codes_with_their_scales_take_the_planned_bytes(
    bits: int, group: int | None, symmetric: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    write_compressed("llama", folder, scheme(bits, group, symmetric=symmetric))
    check(folder, tmp_path)


@pytest.mark.parametrize("name", ["bert-mean", "mpnet-mean", "modernbert-mean", "bert-all", "qwen3-mean"])
def test_a_model_that_pools_takes_the_planned_bytes(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    make_pooled(name, folder)
    pooler = f"model.override_pooler_config={{pooling_type: {POOLED[name].kind.upper()}}}"
    check(folder, tmp_path, overrides=("model.task=embed", pooler, *cache_of(name)))


EVERYWHERE = ", target_modules: [w1, w2, w3, lm_head, embed_tokens]"


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("llama", ""),
        ("gpt2", ""),
        ("mixtral", ""),
        ("mixtral", EVERYWHERE),
    ],
)
def test_slots_of_adapters_take_the_planned_bytes(
    name: str, targets: str, tiny: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    slots = f"lora={{max_loras: 300, max_rank: 64{targets}}}"  # so many that they are judged by themselves
    check(tiny(name).folder, tmp_path, overrides=(slots, CACHE))


@pytest.mark.parametrize(
    ("name", "quantization", "changes"),
    [
        ("qwen3_moe", "auto", ()),
        ("qwen3_moe", "int8", ("hardware.kernels.kernel_set=cpu-generic",)),
        ("deepseek3", "auto", ("parallelism.data=3", "scheduler.max_num_batched_tokens=2048")),
        ("qwen3_next", "auto", ("parallelism.expert_placement_strategy=round_robin",)),
        ("qwen3_next", "auto", ("parallelism.tensor=2",)),
        ("deepseek3", "auto", ("parallelism.tensor=2", "parallelism.data=3")),
        ("mixtral", "auto", ("lora={max_loras: 40, max_rank: 16, target_modules: [q_proj, v_proj]}",)),
    ],
)
def test_a_replica_with_some_of_the_experts_takes_the_planned_bytes(
    name: str, quantization: str, changes: tuple[str, ...], tiny: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    """The first one: none has more experts, and all have the same besides."""
    shape = ("parallelism.data=2", "parallelism.expert=true", "hardware.num_threads=1")
    overrides = (*shape, *changes, *cache_of(name))
    memory = SharedMemory()
    count = 3 if "parallelism.data=3" in changes else 2
    leads = Shard(0, 2 if "parallelism.tensor=2" in changes else 1)
    lockstep = Lockstep(memory, 0, count, 1.0, shard=leads)
    measured = check(tiny(name).folder, tmp_path, quantization, overrides, lockstep)
    assert measured["spread_rows"] > 0
    memory.close()


def check(
    source: Path,
    folder: Path,
    quantization: str = "auto",
    overrides: Sequence[str] = (CACHE,),
    lockstep: Lockstep | None = None,
) -> dict[str, int]:
    """Weights are exact; what `plan --verify` allows is 10 %. Returns what was measured."""
    spec = folder / "deployment.yaml"
    spec.write_text(SPEC.format(source=source, quantization=quantization))
    hardware = None if lockstep is None else machine_with(8, folder)
    plan = prepare(spec, overrides, hardware, to_run=False).plan
    backend = load_backend(plan, SchedulerConfig.from_plan(plan), lambda *_: None, lockstep)
    measured = dict(backend.executable.memory_bytes)
    backend.executable.close()
    rows = {row.name: row for row in compare_boot(plan, BootReport(seconds={}, memory_bytes=measured, num_blocks=0))}
    assert rows["weights"].planned_bytes == rows["weights"].measured_bytes
    assert {name: row.difference for name, row in rows.items() if abs(row.difference) > TOLERANCE} == {}
    return measured
