"""The operators by name, as the planner speaks of them; their typed signatures are in appliance.program.operators."""

OPERATORS: dict[str, str] = {
    "Embed": "token (and position) embeddings",
    "RmsNorm": "RMS norm, with the residual sum",
    "LayerNorm": "layer norm, with the residual sum",
    "HeadNorm": "RMS norm of each head",
    "Linear": "matrix product over the canonical layouts, with bias and activation",
    "Activation": "an elementwise activation",
    "GatedActivation": "activation of the gate times the other half",
    "Rope": "rotary positions",
    "KvWrite": "store keys and values in the paged cache",
    "PagedAttention": "attention over the paged cache; prefill, chunks and decode in one batch",
    "Add": "sum of two activations",
    "GatherRows": "pick the rows whose logits are wanted",
    "SoftCap": "tanh cap of logits",
}

# Operators that read weights, and operators that touch the cache: planned once for each layout or dtype in use.
WEIGHT_OPERATORS = ("Embed", "Linear")
CACHE_OPERATORS = ("KvWrite", "PagedAttention")
