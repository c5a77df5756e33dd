"""Rules of `scheduler`."""

from appliance.spec.deployment import DeploymentSpec
from appliance.spec.rules.finding import Finding, Findings


def budget_covers_sequences(spec: DeploymentSpec) -> Findings:
    tokens, seqs = spec.scheduler.max_num_batched_tokens, spec.scheduler.max_num_seqs
    if isinstance(tokens, int) and isinstance(seqs, int) and tokens < seqs:
        yield Finding(
            path="scheduler.max_num_batched_tokens",
            value=tokens,
            message=f"a step of {tokens} tokens cannot decode {seqs} sequences: each needs one",
            hint=f"write max_num_batched_tokens of at least {seqs}, or fewer max_num_seqs",
        )


def whole_prompts_fit_a_step(spec: DeploymentSpec) -> Findings:
    tokens, length = spec.scheduler.max_num_batched_tokens, spec.model.max_model_len
    is_whole = spec.scheduler.chunked_prefill is False
    if is_whole and isinstance(tokens, int) and isinstance(length, int) and tokens < length:
        yield Finding(
            path="scheduler.max_num_batched_tokens",
            value=tokens,
            message=f"without chunked prefill a prompt of max_model_len {length} needs a step of as many tokens",
            hint=f"write at least {length}, or chunked_prefill: true",
        )


def partial_prefills_are_chunked(spec: DeploymentSpec) -> Findings:
    several, long = spec.scheduler.max_num_partial_prefills, spec.scheduler.max_long_partial_prefills
    if several > 1 and spec.scheduler.chunked_prefill is False:
        yield Finding(
            path="scheduler.max_num_partial_prefills",
            value=several,
            message="prompts are in part only with chunked prefill",
            hint="write chunked_prefill: true, or remove max_num_partial_prefills",
        )
    if long > several:
        yield Finding(
            path="scheduler.max_long_partial_prefills",
            value=long,
            message=f"{long} long prompts cannot be among {several} prompts in part",
            hint=f"write at most {several}, or more max_num_partial_prefills",
        )


def long_prompts_are_possible(spec: DeploymentSpec) -> Findings:
    threshold, length = spec.scheduler.long_prefill_token_threshold, spec.model.max_model_len
    if isinstance(length, int) and threshold > length:
        yield Finding(
            path="scheduler.long_prefill_token_threshold",
            value=threshold,
            message=f"no prompt is longer than max_model_len {length}",
            hint="write a smaller threshold, or remove it",
        )
