"""Plans the experts of a model: their counts, the bytes that a token reads of them, and whether kernels take them."""

from collections.abc import Sequence

from appliance.catalog.formats import F32
from appliance.plan.ledger import Ledger
from appliance.plan.program import PlannedProgram
from appliance.plan.types import ExpertsPlan
from appliance.program.routing import Experts, PlaceExperts

MAX_EXPERTS = 1024  # kernels/cpu/experts.h


def plan_experts(program: PlannedProgram, ledger: Ledger) -> ExpertsPlan | None:
    """Returns None for a model without experts. Refuses those that the kernels cannot take."""
    mixtures = program.mixtures
    if not mixtures:
        return None
    _check_shapes(mixtures, program, ledger)
    _check_storage(mixtures, program, ledger)
    names = {name for op in mixtures for name in op.named(op.matrices)}
    size = sum(program.sizes[name] for name in names if name in program.sizes)
    first = mixtures[0]
    placed = [op for op in program.operators.get(PlaceExperts, ()) if isinstance(op, PlaceExperts)]
    return ExpertsPlan(
        num_experts=next((op.num_experts for op in placed), first.num_experts),
        num_chosen=first.num_chosen,
        num_layers=len(mixtures),
        size_bytes=size,
        bytes_per_token=round(size * first.num_chosen / first.num_experts),
    )


def decode_bytes(program: PlannedProgram) -> int:
    """Returns the bytes of the weights that a decode of one token reads: of experts, those that it chooses."""
    shares = {name: op.num_chosen / op.num_experts for op in program.mixtures for name in op.named(op.matrices)}
    return round(sum(size * shares.get(name, 1.0) for name, size in program.sizes.items()))


def _check_shapes(mixtures: Sequence[Experts], program: PlannedProgram, ledger: Ledger) -> None:
    kernels, rule = program.kernels, "plan/experts"
    for op in mixtures:
        inner = op.width * (2 if op.is_gated and op.gate is None else 1)
        if any(rows % kernels.panel for rows in (inner, op.out.width)):
            message = f"experts of {op.width} by {op.out.width} are no whole panels of {kernels.panel} rows"
            hint = "choose the reference kernel set" if kernels.device == "cpu" else ""
            return ledger.refuse("model.source", rule, f"{message}, which {kernels.name} takes", hint=hint)
        if kernels.panel > 1 and op.num_experts > MAX_EXPERTS:
            message = f"{op.num_experts} experts in a layer are more than {kernels.name} chooses from"
            return ledger.refuse("model.source", rule, message, allowed=f"at most {MAX_EXPERTS}")
    return None


def _check_storage(mixtures: Sequence[Experts], program: PlannedProgram, ledger: Ledger) -> None:
    for name in (name for op in mixtures for name in op.named(op.matrices)):
        weight = program.weights.get(name)
        if weight is None:
            continue  # its tensors are missing, which is refused by itself
        forms = {program.forms.get(group, F32): part for group, part in zip(weight.groups(), weight.parts, strict=True)}
        if len(forms) > 1:
            stored = ", ".join(f"{part.tensor.name} becomes {form.layout}" for form, part in forms.items())
            message = f"{name} is one weight, and its parts are stored unlike each other: {stored}"
            return ledger.refuse("model.source", "plan/experts", message, hint="choose another checkpoint")
    return None
