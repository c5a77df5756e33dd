"""From a caller's parameters to the fields of a request, which the rules of the server check."""

from typing import Any

from appliance.offline.errors import InvalidRequestError
from appliance.offline.params import SamplingParams, StructuredOutputsParams
from appliance.requests.fields import CompletionFields
from appliance.requests.structured_fields import StructuredOutputs

_SAME = (
    "n", "min_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos",
    "skip_special_tokens", "spaces_between_special_tokens", "allowed_token_ids", "bad_words", "prompt_logprobs",
    "logprobs", "truncate_prompt_tokens",
)  # fmt: skip


def completion_fields(params: SamplingParams, processors: list[str], priority: int) -> CompletionFields:
    """Returns the fields without a prompt. processors: the names of the parameters' logits processors."""
    same: dict[str, Any] = {name: getattr(params, name) for name in _SAME}
    bias = params.logit_bias
    return CompletionFields(
        prompt="",
        logit_bias=None if bias is None else {str(token): float(value) for token, value in bias.items()},
        structured_outputs=_structured(params.structured_outputs or params.guided_decoding),
        logits_processors=[*processors] or None,
        priority=priority or None,
        **same,
    )


def _structured(params: StructuredOutputsParams | None) -> StructuredOutputs | None:
    if params is None:
        return None
    if params.choice is not None and not all(isinstance(each, str) for each in params.choice):
        raise InvalidRequestError("choice is a list of texts", param="structured_outputs.choice")
    return StructuredOutputs(
        json=params.json,
        regex=params.regex,
        choice=None if params.choice is None else list(params.choice),
        grammar=params.grammar,
        json_object=params.json_object,
        structural_tag=params.structural_tag,
        whitespace_pattern=params.whitespace_pattern,
        disable_any_whitespace=params.disable_any_whitespace or None,
        disable_additional_properties=params.disable_additional_properties or None,
        disable_fallback=params.disable_fallback or None,
    )
