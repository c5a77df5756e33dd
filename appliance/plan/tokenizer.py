"""Which tokenizer reads the texts, and what cannot be had with one whose tokens' bytes are not known."""

from typing import Final, Literal

from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger

RULE = "plan/tokenizer"
OTHERS: Final[tuple[Literal["slow", "custom"], ...]] = ("slow", "custom")  # modes without the library
_FIELD = "model.tokenizer_mode"


def plan_tokenizer_mode(inputs: PlanInputs, ledger: Ledger) -> Literal["fast", "slow", "custom"]:
    """Returns the mode. One that is not built was refused, and is planned as fast."""
    mode, spec = inputs.spec.model.tokenizer_mode, inputs.spec
    if mode not in OTHERS:
        return "fast"
    if spec.model.skip_tokenizer_init:
        ledger.refuse(_FIELD, RULE, f"tokenizer_mode is {mode}, and skip_tokenizer_init wants none", hint="remove one")
    if inputs.model.root.endswith(".gguf") and spec.model.tokenizer is None and mode == "slow":
        message = "a GGUF file has no tokenizer that transformers reads"
        ledger.refuse(_FIELD, RULE, message, hint="name the folder of the original in model.tokenizer")
    if spec.decoding.structured_output not in (AUTO, "none"):
        message = f"structured output needs the bytes of every token, which tokenizer_mode {mode} does not tell"
        ledger.refuse("decoding.structured_output", RULE, message, allowed="auto, none", hint="write none")
    return ledger.take("model.tokenizer_mode", _FIELD, "slow" if mode == "slow" else "custom")


def refuse_pooling(inputs: PlanInputs, ledger: Ledger) -> None:
    """Inputs of models that pool are cut and paired by the library's tokenizer alone."""
    mode = inputs.spec.model.tokenizer_mode
    if mode != AUTO:
        message = f"the model pools, and tokenizer_mode is {mode}: only auto cuts and pairs texts"
        ledger.refuse(_FIELD, RULE, message, allowed=AUTO, hint="write auto")
