"""Products with dense weights against the reference set: odd shapes, biases, activations, sums, shares."""

import pytest
import torch

from appliance.kernels.gpu.triton.linear import LinearTile, few_rows, gemv, sum_parts
from appliance.kernels.gpu.triton.linear_tiles import choose_linear
from appliance.kernels.reference.activations import activate
from appliance.program.record import ActivationKind
from tests.kernels.triton.oracle import assert_near, random, rest_of, span_of

ACTIVATIONS: list[ActivationKind | None] = [None, "silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid"]
# rows, features, columns
SHAPES = [(1, 64, 128), (1, 37, 300), (3, 64, 128), (17, 100, 90), (64, 40, 513)]


def expected(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    kind: ActivationKind | None,
    out: torch.Tensor | None,
) -> torch.Tensor:
    y = x.float() @ weight.float().T
    y = y if bias is None else y + bias
    y = y if kind is None else activate(y, kind)
    return y if out is None else y + out.float()


def case(rows: int, features: int, columns: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scale = columns**-0.5
    weight = span_of((random(2, features, columns) * scale).to(dtype), 8, 8)
    return random(1, rows, columns, dtype=dtype), weight, random(3, features)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("splits", [1, 3])
def test_product(shape: tuple[int, int, int], splits: int, dtype: torch.dtype) -> None:
    rows, features, _ = shape
    x, weight, bias = case(*shape, dtype)
    before = random(4, rows, features, dtype=dtype)
    for given, kind, is_added in ((None, None, False), (bias, "silu", True)):
        out = span_of(before)
        if rows == 1 and splits == 1:
            gemv(span_of(x), weight, out, LinearTile(4, 64, 1), given, kind, is_added)
        else:
            parts = torch.full((splits, rows, features), float("nan"))
            few_rows(span_of(x), weight, out, LinearTile(32, 32, 4, 2, splits), given, kind, is_added, parts)
        assert_near(out, expected(x, weight, given, kind, before if is_added else None), dtype)
        assert rest_of(out).isnan().all()


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations(kind: ActivationKind | None) -> None:
    x, weight, bias = case(2, 40, 64, torch.float32)
    out = torch.empty(2, 40)
    few_rows(x, weight, out, LinearTile(16, 32, 4), bias, kind)
    assert_near(out, expected(x, weight, bias, kind, None), torch.float32)


def test_a_weight_of_another_type() -> None:
    x, weight, _ = case(5, 40, 64, torch.float32)
    for kernel, rows in ((few_rows, 5), (gemv, 1)):
        out = torch.empty(rows, 40)
        kernel(x[:rows], weight.to(torch.bfloat16), out, LinearTile(16, 32, 4))
        assert_near(out, expected(x[:rows], weight.to(torch.bfloat16), None, None, None), torch.float32)


def test_a_tile_may_say_how_many_rows_are_multiplied_together() -> None:
    """A row among 3 and one among 40 are then multiplied by the same kernel, and so round alike."""
    x, weight, bias = case(40, 40, 64, torch.float32)
    all_rows, few = torch.empty(40, 40), torch.empty(3, 40)
    for rows, out in ((x, all_rows), (x[:3], few)):
        few_rows(rows, weight, out, LinearTile(16, 32, 4, 1, 2, 16), bias, parts=torch.empty(2, len(rows), 40))
    assert torch.equal(few, all_rows[:3])
    assert_near(all_rows, expected(x, weight, bias, None, None), torch.float32)
    assert [LinearTile(16, 32, 4).padded(rows) for rows in (1, 17, 64)] == [16, 32, 64]


def test_parts_are_summed_in_their_order() -> None:
    parts = torch.tensor([1e8, 1.0, -1e8]).reshape(3, 1, 1).expand(3, 2, 5).contiguous()
    out = torch.empty(2, 5)
    sum_parts(parts, out)
    assert torch.equal(out, torch.zeros(2, 5))  # (1e8 + 1) - 1e8 in f32


def test_shares_need_parts() -> None:
    x, weight, _ = case(2, 40, 64, torch.float32)
    with pytest.raises(ValueError, match=r"2 shares need parts of shape \[2, 2, 40\]"):
        few_rows(x, weight, torch.empty(2, 40), LinearTile(16, 32, 4, 1, 2))


def test_choices() -> None:
    """Shapes of an 8B model: the tiles of the table where the device is full, and shares where it is not."""

    def chosen(features: int, columns: int, rows: int, invariant: bool = False) -> tuple[str, LinearTile]:
        return choose_linear(features, columns, rows, torch.bfloat16, "sm90", 132, invariant)

    assert chosen(6144, 4096, 1) == ("gemv", LinearTile(1, 2048, 4))
    assert chosen(896, 896, 1) == ("gemv", LinearTile(2, 1024, 2))
    assert chosen(128256, 4096, 16) == ("few_rows", LinearTile(128, 128, 4, 4))
    assert chosen(4096, 14336, 16) == ("few_rows", LinearTile(64, 128, 4, 4, 2))
    assert chosen(4096, 4096, 65)[0] == "library"
    assert chosen(4096, 4096, 1, True) == chosen(4096, 4096, 64, True) == ("few_rows", LinearTile(64, 128, 4, 4, 2, 64))
