"""The least work of a whole program (Williams et al. 2009, "Roofline")."""

from typing import NamedTuple

from msgspec.structs import replace

from appliance.program.head import screened_head
from appliance.program.operators import StepProgram
from appliance.program.work import Forms, OperatorWork


class Screen(NamedTuple):
    """A copy of the output head in fewer bits, and the largest number of logits rows for which it is used."""

    size_bytes: int
    most_rows: int
    layout: str


def program_work(program: StepProgram, forms: Forms, screen: Screen | None = None) -> tuple[OperatorWork, ...]:
    """Returns the work of each operator, in order. A screen needs a program whose head can have one (screened_head)."""
    works = [op.work(forms) for op in program.operators]
    if screen is not None:
        head = screened_head(program)
        assert head is not None, "only a head that is nothing but products has a screen"
        works[head.position] = _screened(works[head.position], screen)
    return tuple(works)


def _screened(head: OperatorWork, screen: Screen) -> OperatorWork:
    label = f"{head.label}, screened"
    of_copy = replace(head, label=label, unit="int8", kernel=screen.layout, weight_bytes=screen.size_bytes)
    return replace(head, screened=of_copy, screened_rows=screen.most_rows)
