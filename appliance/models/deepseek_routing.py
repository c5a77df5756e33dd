"""The routing of DeepSeek V3, which families without its attention use too: sigmoids, a correction, groups, one block
shared by all tokens, and dense layers first."""

from appliance.layers.spec import RoutingSpec
from appliance.models.experts import Mixture
from appliance.models.family import Model


def drafting_layers(model: Model, default: int) -> tuple[str, ...]:
    """Returns the patterns of the tensors of layers after the last one, which draft tokens for speculation."""
    first, count = model.config.num_layers, model.count("num_nextn_predict_layers", default)
    return tuple(f"*layers.{first + index}.*" for index in range(count))


def deepseek_mixture(model: Model, renormalize: bool, first_dense: int) -> Mixture:
    """renormalize and first_dense are the family's defaults of `norm_topk_prob` and `first_k_dense_replace`; newer
    configs list the kind of each layer."""
    routing = RoutingSpec(
        "sigmoid",
        correction=True,
        renormalize=model.flag("norm_topk_prob", default=renormalize),
        scale=model.number("routed_scaling_factor", 1.0),
        num_groups=model.count("n_group", 1),
        num_chosen_groups=model.count("topk_group", 1),
    )
    spec = model.experts(routing, model.shared_experts(model.count("n_shared_experts", 0)))
    first, kinds = model.count("first_k_dense_replace", first_dense), model.fields.get("mlp_layer_types")
    is_sparse = tuple(index >= first for index in range(model.config.num_layers))
    return Mixture.of(model, spec, is_sparse=is_sparse if kinds is None else tuple(kind == "sparse" for kind in kinds))
