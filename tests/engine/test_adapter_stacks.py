"""Several adapters of one request: what they add together, and the slot that they share."""

from collections import Counter

import numpy as np
import pytest

from appliance.engine.adapter_stacks import StackPart, digests_of, is_stack, parts_of, stack_digest, stacked
from appliance.engine.core.adapter_slots import AdapterSlots, ServedAdapter
from appliance.engine.refusal import Refusal
from appliance.kernels.interface import WeightChange
from appliance.loading.formats.dense import narrow, widen

RNG = np.random.default_rng(3)


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def effect(change: WeightChange, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """What a change adds to the product y of a weight and x."""
    added = np.zeros_like(y)
    if change.up is not None:
        added = added + change.up @ (x if change.down is None else change.down @ x)
    if change.stretch is not None:
        added = added + change.stretch * y
    return added if change.shift is None else added + change.shift


LOW = WeightChange(numbers(2, 6), numbers(8, 2))
OTHER = WeightChange(numbers(3, 6), numbers(8, 3), numbers(8), numbers(8))
WHOLE = WeightChange(up=numbers(8, 6))
BIAS = WeightChange(shift=numbers(8))


@pytest.mark.parametrize("pair", [(LOW, OTHER), (LOW, WHOLE), (BIAS, OTHER), (BIAS, BIAS), (WHOLE, WHOLE)])
def test_a_stack_adds_what_its_parts_add(pair: tuple[WeightChange, WeightChange]) -> None:
    parts, scales = (StackPart("a", 1.0), StackPart("b", -0.5)), (1.0, -0.5)
    maps = {"a": {"q": pair[0], "k": LOW}, "b": {"q": pair[1], "v": OTHER}}
    found = stacked(parts, maps.__getitem__, "f32")
    assert found.keys() == {"q", "k", "v"}
    x, y = numbers(6), numbers(8)
    wanted = sum(scale * effect(each, x, y) for scale, each in zip(scales, pair, strict=True))
    np.testing.assert_allclose(effect(found["q"], x, y), wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(effect(found["v"], x, y), -0.5 * effect(OTHER, x, y), rtol=1e-5, atol=1e-5)
    assert np.array_equal(found["k"].up, LOW.up)  # type: ignore[arg-type]


def test_a_part_in_bf16_keeps_its_bits_without_a_scale() -> None:
    half = WeightChange(narrow(numbers(2, 6), "bf16"), narrow(numbers(8, 2), "bf16"))
    parts = (StackPart("a", 1.0), StackPart("b", 2.0))
    found = stacked(parts, {"a": {"q": half}, "b": {"q": half}}.__getitem__, "bf16")["q"]
    assert found.up is not None
    assert found.down is not None
    assert half.up is not None
    assert found.up.dtype == np.uint16
    assert found.up.flags.f_contiguous
    assert np.array_equal(found.up[:, :2], half.up)
    assert np.array_equal(widen(found.up[:, 2:], "bf16"), 2 * widen(half.up, "bf16"))
    assert found.rank == 4


def test_a_digest_names_its_parts() -> None:
    parts = (StackPart("aa", 1.0), StackPart("bb", -0.25))
    digest = stack_digest(parts)
    assert is_stack(digest)
    assert not is_stack("aa")
    assert parts_of(digest) == parts
    assert digests_of(digest) == {"aa", "bb"}
    assert digests_of("aa") == {"aa"}


def slots() -> AdapterSlots:
    made = AdapterSlots(2, max_rank=12)
    names = (("a", "aa", 1.0, 4), ("b", "bb", 0.5, 8), ("c", "cc", 1.0, 1))
    made.serve({name: ServedAdapter(digest, scale, name, rank) for name, digest, scale, rank in names})
    return made


def test_requests_find_stacks_by_name() -> None:
    made = slots()
    found = made.find("b", None, [("a", 2.0)])
    assert found == made.find("a", 2.0, [("b", 0.5)])._replace(name="b")  # type: ignore[union-attr]
    assert found is not None
    assert parts_of(found.sha256) == (StackPart("aa", 2.0), StackPart("bb", 0.5))
    assert made.find("a", None, [("b", 0.0)]) == ServedAdapter("aa", 1.0, "a", 4)
    assert made.find("a", 0.0, [("b", 0.0)]) is None
    with pytest.raises(Refusal, match="'d' is not served"):
        made.find("a", None, [("d", 1.0)])


def test_a_stack_that_is_too_large_for_a_slot_is_refused() -> None:
    made = slots()
    assert made.find("a", None, [("b", None)]) is not None  # rank 12, as many as a slot has
    assert made.find("a", None, [("b", None), ("c", 0.0)]) is not None
    with pytest.raises(Refusal, match=r"rank 13 together, and slots are for 12 \(lora.max_rank\)"):
        made.find("a", None, [("b", None), ("c", None)])


def test_a_stack_has_a_slot_and_keeps_its_parts() -> None:
    made = slots()
    stack = made.find("a", None, [("b", None)])
    assert stack is not None
    slot = made.take(stack)
    assert made.take_puts() == ((slot, stack.sha256),)
    made.serve({})
    assert made.needed() == {"aa", "bb"}
    assert made.drop_unneeded() == []
    made.check_invariants(Counter({stack.sha256: 1}), Counter())
    made.release(stack)
    assert made.drop_unneeded() == [slot]
