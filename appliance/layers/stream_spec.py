"""What stands beside the residual stream, as data: inputs of each layer, and further streams."""

import msgspec

from appliance.program.record import ActivationKind


class PerLayerSpec(msgspec.Struct, frozen=True):
    """Inputs of each layer beside the residual stream (per-layer embeddings): `width` columns for each, of a table of
    their own and of the embedding, (norm(project(embedding) * input_scale) + table * table_scale) * sum_scale.

    After its blocks, a layer adds norm(out(activation(gate(x)) * input)). The table has `num_rows` rows, and tokens
    beyond it have its first. Weights: `per_layer.embed`, `per_layer.project`, `per_layer.norm`, and of each layer
    `per_layer.gate`, `per_layer.out` and `per_layer.post_norm`.
    """

    width: int
    num_rows: int
    activation: ActivationKind
    norm_eps: float
    input_scale: float
    table_scale: float
    sum_scale: float


class StreamsSpec(msgspec.Struct, frozen=True):
    """Several residual streams (AltUp, arXiv:2301.13310), of which layers compute with the first, and LAuReL blocks
    (arXiv:2411.07501) of rank `laurel_rank` beside their mixers. Layers have the norms `sandwich`.

    The others begin as maps of the embedding, `streams.begin.<j>`, and end as maps `streams.end.<j>`, each with the
    magnitude of the first; the mean of all is what the final norm reads. Before a layer, streams are mixed by
    coefficients of `streams.router_norm`, `streams.router` and `streams.predict`, and after it corrected by those of
    `streams.correct`. Inputs of a layer (PerLayerSpec) are made of the first stream, times the vector `streams.scale`
    if is_scaled, and added to the others. Beside its mixer a layer has `laurel.low`, `laurel.high` and `laurel.norm`.
    """

    num_streams: int
    laurel_rank: int
    norm_eps: float
    is_scaled: bool = True
