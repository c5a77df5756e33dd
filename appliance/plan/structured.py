"""Pass `structured`: the back-end of structured output, and how it reads schemas."""

from typing import Final, Literal

from appliance.catalog.tokenizer_modes import OTHERS
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.plan.serving_types import StructuredPlan

BACKEND: Final = "guidance"  # llguidance; other names were refused as not built


def plan_structured(inputs: PlanInputs, ledger: Ledger) -> StructuredPlan:
    decoding = inputs.spec.decoding
    backend: Literal["guidance"] | None
    path, spec_path = "serving.structured.backend", "decoding.structured_output"
    if inputs.spec.model.skip_tokenizer_init:
        backend = ledger.decide(path, None, "spec", "constraints are over text, and model.skip_tokenizer_init is true")
    elif inputs.spec.model.tokenizer_mode in OTHERS:
        why = f"tokenizer_mode {inputs.spec.model.tokenizer_mode} does not tell the bytes of tokens"
        backend = ledger.decide(path, None, "spec", why)
    elif decoding.structured_output == AUTO:
        why = "the one back-end of this version; it is loaded at the first request that has a constraint"
        backend = ledger.decide(path, BACKEND, "computed", why)
    else:
        backend = ledger.take(path, spec_path, BACKEND if decoding.structured_output == BACKEND else None)
    return StructuredPlan(
        backend=backend,
        at_start=backend is not None and decoding.structured_output != AUTO,
        any_whitespace=not decoding.disable_any_whitespace,
        additional_properties=decoding.disable_additional_properties is False,
    )
