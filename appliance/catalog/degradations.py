"""The degradations: every lesser form in which a requested feature can be had. Without a lesser form it is refused.

Each is an error, or it is reported: in the plan, or in the header x-degraded of the answers and in a counter.
"""

from typing import Literal

import msgspec

Strictness = Literal["error", "warn", "allow"]
DegradationKind = Literal[
    "kernel_set", "activations", "kv_dtype", "block_size", "context", "ignored_field", "truncated_prompt"
]


class Degradation(msgspec.Struct, frozen=True):
    """One degradation. planned: it is decided in the plan for all requests; else for one request. error: the rule or
    error code if it is not allowed. by_strictness: the spec's strictness decides; else it is allowed, because the
    client requested it."""

    kind: DegradationKind
    planned: bool
    what: str
    error: str
    by_strictness: bool = True


DEGRADATIONS: tuple[Degradation, ...] = (
    Degradation("kernel_set", True, "another kernel set than the one that was named", "plan/kernel-set"),
    Degradation("activations", True, "activations in floats where 8 bits were asked for", "plan/activations"),
    Degradation("kv_dtype", True, "another type of the KV cache", "plan/kv-dtype"),
    Degradation("block_size", True, "blocks of another size", "plan/block-size"),
    Degradation("context", True, "a shorter context, because of the memory", "plan/fit"),
    Degradation("ignored_field", False, "a field of the request that is not known was left out", "unknown_parameter"),
    Degradation(
        "truncated_prompt", False, "truncate_prompt_tokens has cut the prompt", "prompt_truncated", by_strictness=False
    ),
)

BY_KIND = {each.kind: each for each in DEGRADATIONS}
