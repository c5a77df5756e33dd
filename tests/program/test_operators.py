"""The declarations of an operator's record: its place in the ABI, its weights, its slots."""

from typing import get_type_hints

import pytest

from appliance.program.header import header_text
from appliance.program.operators import OPERATORS, Embed, Linear, Operator, RmsNorm, StepProgram
from appliance.program.slots import Extent, Slot, whole

X, OUT = Slot(0, Extent.TOKENS, 8), Slot(1, Extent.TOKENS, 4)


@pytest.mark.parametrize("record", OPERATORS, ids=lambda record: record.__name__)
def test_a_record_declares_fields_that_it_has(record: type[Operator]) -> None:
    assert record.doc
    # A part is what an adapter calls a weight of the checkpoint.
    named = {name for name, kind in get_type_hints(record).items() if kind in (str, str | None)} - {
        "doc",
        "part",
    }  # a part is what an adapter calls a weight
    assert named == {*record.matrices, *record.vectors}, "every name that a record holds is that of a weight"


def test_numbers_of_the_abi_follow_the_records() -> None:
    text = header_text()
    assert "APPL_OP_EMBED = 0," in text
    assert f"APPL_OP_COUNT = {len(OPERATORS)}," in text
    assert all(f"APPL_OP_{record.label().upper()} = {at}," in text for at, record in enumerate(OPERATORS))


def test_a_program_names_its_weights_by_how_they_are_kept() -> None:
    operators = (
        Embed("table", X, position_table="positions"),
        RmsNorm(X, "norm", X, 1e-6),
        Linear(whole(X), "matrix", whole(OUT), bias="bias"),
    )
    program = StepProgram(operators, (X, OUT), OUT)
    assert program.matrices() == {"table", "positions", "matrix"}
    assert program.vectors() == {"norm", "bias"}


def test_slots_are_read_off_the_fields() -> None:
    assert Linear(whole(X), "w", whole(OUT)).slots() == [X, OUT]
    assert RmsNorm(X, "w", OUT, 1e-6, residual=X).slots() == [X, OUT, X]
