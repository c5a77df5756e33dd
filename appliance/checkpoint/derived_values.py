"""Values of single model types that follow from others of their configs."""

from appliance.checkpoint.dialect import Json
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.rope import positive_of


def chatglm(values: Json) -> Json:
    """Some heads share keys where a switch says so; half of each head rotates, with a base that a ratio multiplies."""
    heads, found = values.get("num_attention_heads"), {"rope_theta": 10_000.0 * positive_of(values, "rope_ratio", 1.0)}
    shared = values.get("multi_query_group_num") if values.get("multi_query_attention") else heads
    biased = bool(values.get("add_bias_linear"))
    return {**found, "num_key_value_heads": shared, "attention_bias": biased or bool(values.get("add_qkv_bias"))}


def mimo(values: Json) -> Json:
    """MiMo's own configs have a list with a one for each layer that has a window, and a base of the rotation of each
    kind of layer. Raises CheckpointError for any other list."""
    pattern, thetas = values.get("hybrid_layer_pattern"), (values.get("rope_theta"), values.get("swa_rope_theta"))
    found: dict[str, object] = {}
    if pattern is not None:
        if not isinstance(pattern, list) or any(kind not in (0, 1) for kind in pattern):
            raise CheckpointError("config.json", "hybrid_layer_pattern must list 0 or 1 for each layer")
        found["layer_types"] = ["sliding_attention" if kind else "full_attention" for kind in pattern]
    if None not in thetas:
        kinds = ("full_attention", "sliding_attention")
        found["rope_parameters"] = {kind: {"rope_theta": theta} for kind, theta in zip(kinds, thetas, strict=True)}
    return found
