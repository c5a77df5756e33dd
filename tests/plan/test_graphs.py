"""Which steps run as graphs, and to which sizes they are padded."""

import pytest

from appliance.base.errors import SpecError
from appliance.plan.types import EnginePlan, GraphsPlan
from tests.plan.machines import MODEL, decision, load, machine, plan, small_model

H100 = "nvidia-h100-sxm-80g"


def on_gpu(*overrides: str) -> EnginePlan:
    return plan(load(MODEL, *overrides), small_model(), machine(H100))


def refused(*overrides: str, name: str = H100) -> str:
    with pytest.raises(SpecError) as caught:
        plan(load(MODEL, *overrides), small_model(), machine(name))
    return str(caught.value)


def test_the_sizes_are_those_of_vllm() -> None:
    found = on_gpu("scheduler.max_num_seqs=256", "scheduler.max_num_batched_tokens=8192").graphs
    assert found.mode == "FULL_AND_PIECEWISE"
    assert found.token_sizes == (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
    assert found.decode_sizes == (1, 2, 4, *range(8, 257, 8))


def test_every_number_of_sequences_has_a_size() -> None:
    found = on_gpu("scheduler.max_num_seqs=5").graphs
    assert found.decode_sizes == (1, 2, 4, 5)
    assert found.token_sizes == (1, 2, 4, 5, 8)


@pytest.mark.parametrize(
    ("overrides", "mode", "has_decode", "has_tokens"),
    [
        (("compilation.cudagraph_mode=NONE",), "NONE", False, False),
        (("compilation.enforce_eager=true",), "NONE", False, False),
        (("compilation.level=0",), "NONE", False, False),
        (("compilation.level=1",), "FULL_AND_PIECEWISE", True, True),
        (("compilation.cudagraph_mode=PIECEWISE",), "PIECEWISE", False, True),
        (("compilation.cudagraph_mode=FULL_DECODE_ONLY", "compilation.level=0"), "FULL_DECODE_ONLY", True, False),
        (("compilation.cudagraph_mode=FULL",), "FULL_AND_PIECEWISE", True, True),
    ],
)
def test_modes_have_vllms_meanings(overrides: tuple[str, ...], mode: str, has_decode: bool, has_tokens: bool) -> None:
    found = on_gpu(*overrides)
    assert (found.graphs.mode, bool(found.graphs.decode_sizes), bool(found.graphs.token_sizes)) == (
        mode, has_decode, has_tokens,
    )  # fmt: skip
    assert decision(found, "graphs.mode").value == mode


def test_full_says_what_it_becomes() -> None:
    assert "attention of prompts" in decision(on_gpu("compilation.cudagraph_mode=FULL"), "graphs.mode").reason


@pytest.mark.parametrize(
    ("overrides", "sizes"),
    [
        (("compilation.cudagraph_capture_sizes=[16, 1, 4]",), (1, 4, 16)),
        (("compilation.cuda_graph_sizes=[8, 2]",), (2, 8)),
        (("compilation.cuda_graph_sizes=[16]", "scheduler.max_num_seqs=64"), (1, 2, 4, 8, 16)),
        (("compilation.max_cudagraph_capture_size=12", "scheduler.max_num_seqs=64"), (1, 2, 4, 8, 12)),
    ],
)
def test_sizes_that_are_said_are_kept_to(overrides: tuple[str, ...], sizes: tuple[int, ...]) -> None:
    assert on_gpu(*overrides).graphs.token_sizes == sizes


def test_longer_sequences_run_without_graphs_where_that_is_said() -> None:
    assert on_gpu().graphs.max_seq_len is None
    assert on_gpu("compilation.max_seq_len_to_capture=8k").graphs.max_seq_len == 8000


def test_compiled_kernels_are_kept_where_the_spec_says() -> None:
    assert on_gpu().kernels.cache_dir is None
    assert on_gpu("compilation.cache_dir=/kept").kernels.cache_dir == "/kept"
    assert "compiles no kernels" in refused("compilation.cache_dir=/kept", name="laptop-ryzen-7-7840u")


def test_sizes_that_no_step_has_are_refused() -> None:
    text = refused("compilation.cudagraph_capture_sizes=[1, 100000]")
    assert "100,000 tokens" in text
    text = refused("compilation.cudagraph_capture_sizes=[1, 8]", "compilation.max_cudagraph_capture_size=4")
    assert "largest" in text
    assert "both say" in refused("compilation.cudagraph_capture_sizes=[1]", "compilation.cuda_graph_sizes=[1, 2]")


@pytest.mark.parametrize("wish", ["cudagraph_mode=FULL", "cudagraph_capture_sizes=[1]", "cuda_graph_sizes=[8]",
                                  "max_cudagraph_capture_size=8", "max_seq_len_to_capture=8k"])  # fmt: skip
def test_a_cpu_has_no_graphs(wish: str) -> None:
    assert f"compilation.{wish.partition('=')[0]} asks for graphs" in refused(
        f"compilation.{wish}", name="laptop-ryzen-7-7840u"
    )


def test_a_cpu_takes_what_asks_for_none() -> None:
    for wish in ("cudagraph_mode=NONE", "enforce_eager=true", "level=0", "level=3"):
        assert plan(load(MODEL, f"compilation.{wish}")).graphs == GraphsPlan()


def test_graphs_have_a_price_on_a_gpu() -> None:
    items = {item.name: item.size_bytes for item in on_gpu().memory[0].items}
    without = {item.name: item.size_bytes for item in on_gpu("compilation.enforce_eager=true").memory[0].items}
    assert 0 < items["graphs"] < 1 << 30
    assert "graphs" not in without
    assert without["kv_cache"] > items["kv_cache"]
