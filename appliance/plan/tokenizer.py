"""Which tokenizer reads the texts, and what cannot be had with one that is not the library's, or has no templates."""

from typing import Final

from appliance.catalog.tokenizer_modes import MISTRAL_COMMON, OTHERS, TokenizerMode
from appliance.checkpoint.mistral import TOKENIZER_MODE
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger

RULE = "plan/tokenizer"
_FIELD = "model.tokenizer_mode"
_OF_TEMPLATES: Final = {  # fields that have no use where no template writes conversations, and their defaults
    "chat_template": None,
    "chat_template_content_format": AUTO,
    "trust_request_chat_template": False,
    "special_tokens_in_messages": "escape",
}


def plan_tokenizer_mode(inputs: PlanInputs, ledger: Ledger) -> TokenizerMode:
    mode, spec = inputs.spec.model.tokenizer_mode, inputs.spec
    if mode == "auto":
        return "fast"
    if spec.model.skip_tokenizer_init:
        ledger.refuse(_FIELD, RULE, f"tokenizer_mode is {mode}, and skip_tokenizer_init wants none", hint="remove one")
    if inputs.model.root.endswith(".gguf") and spec.model.tokenizer is None and mode != "custom":
        library = MISTRAL_COMMON if mode == TOKENIZER_MODE else "transformers"
        message = f"a GGUF file has no tokenizer that {library} reads"
        ledger.refuse(_FIELD, RULE, message, hint="name the folder of the original in model.tokenizer")
    if mode in OTHERS and spec.decoding.structured_output not in (AUTO, "none"):
        message = f"structured output needs the bytes of every token, which tokenizer_mode {mode} does not tell"
        ledger.refuse("decoding.structured_output", RULE, message, allowed="auto, none", hint="write none")
    if mode == TOKENIZER_MODE:
        _refuse_templates(inputs, ledger)
    planned: TokenizerMode = MISTRAL_COMMON if mode == TOKENIZER_MODE else mode
    return ledger.take("model.tokenizer_mode", _FIELD, planned)


def _refuse_templates(inputs: PlanInputs, ledger: Ledger) -> None:
    for name, default in _OF_TEMPLATES.items():
        value = getattr(inputs.spec.model, name)
        if value != default:
            message = f"mistral-common writes conversations, without a template: {name} has no use"
            ledger.refuse(f"model.{name}", RULE, message, hint=f"remove it, or write tokenizer_mode: {AUTO}")


def refuse_pooling(inputs: PlanInputs, ledger: Ledger) -> None:
    """Inputs of models that pool are cut and paired by the library's tokenizer alone."""
    mode = inputs.spec.model.tokenizer_mode
    if mode != AUTO:
        message = f"the model pools, and tokenizer_mode is {mode}: only auto cuts and pairs texts"
        ledger.refuse(_FIELD, RULE, message, allowed=AUTO, hint="write auto")
