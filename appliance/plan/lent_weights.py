"""The weights of a model that its drafting head reads too, so that memory has one copy of them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from appliance.checkpoint.facts import ModelFacts
from appliance.models.draft_heads import folder_of
from appliance.plan.program import PlannedProgram
from appliance.plan.weights import Weight, WeightPart

_Place = tuple[str, int, int, int | None]  # of a table: file, offset, rows and columns


class Lender(NamedTuple):
    """A model and its program."""

    program: PlannedProgram
    model: ModelFacts


def lent_weights(lender: Lender, programs: Sequence[PlannedProgram], facts: ModelFacts) -> dict[str, str]:
    """Returns the tables that all programs of a head read in place of their own: by the names of these, those of the
    model, where they are the same and planned alike. None if the kernel set lends none."""
    program = lender.program
    if not program.kernels.lends_weights or program.num_ranks > 1:
        return {}
    theirs = {place: name for name, place in _tables(program, lender.model).items()}
    found: dict[str, str] = {}
    for number, own in enumerate(programs):
        same = {name: theirs[place] for name, place in _tables(own, facts).items() if place in theirs}
        lent = {
            name: of for name, of in same.items() if own.form(own.weights[name]) == program.form(program.weights[of])
        }
        found = lent if number == 0 else {name: of for name, of in found.items() if lent.get(name) == of}
    return found


def _tables(program: PlannedProgram, facts: ModelFacts) -> Mapping[str, _Place]:
    """Returns where the tables of the vocabulary lie that a program reads whole, by name."""
    folder = folder_of(facts)
    return {
        name: (str(folder / part.tensor.file), part.tensor.offset_bytes, part.rows, part.columns)
        for name, weight in program.weights.items()
        for part in _only_part(weight)
    }


def _only_part(weight: Weight) -> tuple[WeightPart, ...]:
    return weight.parts if weight.role == "embedding" and len(weight.parts) == 1 else ()
