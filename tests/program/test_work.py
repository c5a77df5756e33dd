"""The work of a step's operators for given sizes of the step."""

from appliance.program.operators import Embed, Linear, PagedAttention
from appliance.program.routing import Experts
from appliance.program.slots import Extent, Slot, Span, whole
from appliance.program.states import GatedDelta, RgLru, ShortConv, StateSpace
from appliance.program.work import Forms, OperatorWork, StepCounts, WeightSize, reaches_of

COUNTS = StepCounts(tokens=5, sampled=2, keys={None: 36, 3: 9}, visits={None: 50, 3: 15})


def forms(layout: str, kv_dtype: str = "bf16", *, int8_inputs: bool = True) -> Forms:
    return Forms(lambda name: WeightSize(len(name), layout), kv_dtype, int8_inputs)


def test_bytes_are_of_weights_rows_and_keys() -> None:
    assert COUNTS.bytes_of(OperatorWork("a", key_bytes=10, weight_bytes=7, row_bytes=2)) == 7 + 2 * 5 + 360


def test_operations_are_of_rows_and_visits() -> None:
    assert COUNTS.operations_of(OperatorWork("a", row_operations=3, visit_operations=2, reach=3)) == 15 + 30
    assert COUNTS.operations_of(OperatorWork("a", row_operations=3, extent=Extent.SAMPLED)) == 6


def test_rows_that_choose_experts_read_a_share_of_them() -> None:
    experts = OperatorWork("experts", weight_bytes=640, chosen_share=1 / 8)
    read = [StepCounts(tokens=n, sampled=0, keys={}, visits={}).bytes_of(experts) for n in (0, 1, 2, 1000)]
    assert read == [0, 80, 150, 640]  # 640 * (1 - (7 / 8) ** 2) = 150
    assert COUNTS.rows_of_weights(experts) == 5 / 8
    assert StepCounts(0, 0, {}, {}).bytes_of(OperatorWork("linear", weight_bytes=7)) == 7


def test_experts_multiply_the_chosen_ones_alone() -> None:
    x, out, chosen = Slot(0, Extent.TOKENS, 64), Slot(1, Extent.TOKENS, 64), Slot(2, Extent.TOKENS, 2, "int32")
    factors = Slot(3, Extent.TOKENS, 2)
    op = Experts(x, chosen, factors, "abcde", "abc", out, num_experts=8, width=32, kind="silu")
    work = op.work(forms("int4"))
    assert (work.weight_bytes, work.chosen_share, work.unit) == (5 + 3, 2 / 8, "int8")
    assert work.row_operations == 2 * 2 * 3 * 64 * 32
    assert op.slots() == [x, chosen, factors, out]


def test_few_logits_are_screened_in_steps_of_few_rows() -> None:
    copy = OperatorWork("copy", weight_bytes=1)
    head = OperatorWork("head", weight_bytes=4, screened=copy, screened_rows=2)
    assert COUNTS.work_of(head) is head
    few = StepCounts(tokens=5, sampled=2, keys={}, visits={}, few_logits=True)
    assert few.work_of(head) is copy
    assert StepCounts(tokens=5, sampled=3, keys={}, visits={}, few_logits=True).work_of(head) is head


def test_windows_are_those_that_something_is_counted_by() -> None:
    works = (OperatorWork("a", key_bytes=1, reach=3), OperatorWork("b", reach=7), OperatorWork("c", key_bytes=1))
    assert reaches_of(works) == {None, 3}


def test_a_linear_reads_its_weight_once_and_multiplies_every_row() -> None:
    x, out = Slot(0, Extent.TOKENS, 64), Slot(1, Extent.TOKENS, 32)
    work = Linear(whole(x), "layers.0.o", whole(out)).work(forms("int4"))
    assert work == OperatorWork(
        "linear o", unit="int8", kernel="int4", weight_bytes=len("layers.0.o"), row_operations=2 * 64 * 32
    )


def test_weights_are_bound_by_what_they_meet() -> None:
    quantized, floats = forms("int4"), forms("int4", int8_inputs=False)
    assert (quantized.unit("int4"), quantized.kernel("int4")) == ("int8", "int4")
    assert (floats.unit("int4"), floats.kernel("int4")) == ("f32", "")
    assert (floats.unit("f16"), floats.kernel("f16")) == ("bf16", "f16")


def test_attention_reads_keys_and_values_of_its_cache() -> None:
    slot = Slot(0, Extent.TOKENS, 64)
    op = PagedAttention(whole(slot), slot, cache=0, num_heads=4, num_kv_heads=2, head_dim=16, scale=1.0, window=8)
    work = op.work(forms("f32"))
    assert (work.key_bytes, work.visit_operations, work.reach, work.unit) == (2 * 2 * 16 * 2, 4 * 64, 8, "bf16")
    assert op.work(forms("f32", kv_dtype="f32")).key_bytes == 2 * 2 * 16 * 4


def test_an_embedding_reads_a_row_a_token() -> None:
    assert Embed("table", Slot(0, Extent.TOKENS, 64)).work(forms("f32")) == OperatorWork("embed", row_bytes=256)


def test_states_are_read_and_written_for_each_sequence() -> None:
    step = StepCounts(tokens=9, sampled=2, keys={}, visits={}, sequences=3)
    slot = Slot(0, Extent.TOKENS, 64)
    q, v, head = Span(slot, 0, 16), Span(slot, 16, 32), Span(slot, 48, 4)
    delta = GatedDelta(q, q, v, head, head, "a", "b", v, 0, num_key_heads=2, num_value_heads=4)
    assert delta.state_shape == (4, 8, 8)
    assert step.bytes_of(delta.work(forms("f32"))) == 3 * 2 * 4 * (4 * 8 * 8)
    assert step.operations_of(delta.work(forms("f32"))) == 9 * 7 * (4 * 8 * 8)
    space = StateSpace(v, q, q, head, "a", "d", v, 0, num_heads=4, num_groups=2)
    assert space.state_shape == (4, 8, 8)
    assert step.operations_of(space.work(forms("f32"))) == 9 * 5 * (4 * 8 * 8)
    channels = StateSpace(head, q, q, head, "a", "d", head, 0, num_heads=4, by_state=True)
    assert channels.state_shape == (16, 4)
    unit = RgLru(v, v, v, "a", "i", "r", v, 0)
    assert step.bytes_of(unit.work(forms("f32"))) == 3 * 2 * 4 * 32
    assert step.operations_of(unit.work(forms("f32"))) == 9 * 6 * 32
    conv = ShortConv(v, "w", v, 0, kernel_size=4)
    assert step.bytes_of(conv.work(forms("f32"))) == 3 * 2 * 4 * (3 * 32)
    assert step.operations_of(conv.work(forms("f32"))) == 9 * 2 * 4 * 32
