"""What is made of the numbers that a model pools: lengths, classes, similarities, and their forms in answers."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from appliance.plan.types import PoolingPlan, VectorActivation
from appliance.requests.errors import ApiError, invalid
from appliance.requests.pooling.fields import EmbeddingType

Floats = npt.NDArray[np.float32]
_LEAST_LENGTH = 1e-12  # of a vector that is divided by its length


def read_vectors(data: bytes, width: int) -> Floats:
    """Returns the vectors f32 [n, width] of one input."""
    return np.frombuffer(data, "<f4").reshape(-1, width).astype(np.float32, copy=False)


def in_chunks(token_ids: list[int], most: int) -> list[list[int]]:
    """Returns the tokens in chunks of at most `most`; one chunk of those that fit."""
    return [token_ids[at : at + most] for at in range(0, len(token_ids), most)] or [token_ids]


def joined(parts: Sequence[tuple[int, Floats]]) -> Floats:
    """Returns the vectors of an input from those of its chunks, of so many tokens each: their weighted mean."""
    if len(parts) == 1:
        return parts[0][1]
    weights = np.array([count for count, _ in parts], np.float64)
    vectors = np.stack([vector.astype(np.float64) for _, vector in parts])
    return np.asarray(np.tensordot(weights / weights.sum(), vectors, 1), np.float32)


def of_steps(vectors: Floats, token_ids: list[int], pooling: PoolingPlan) -> Floats:
    """Keeps the rows of the tokens that end a step, where the plan names such a token."""
    if pooling.step_tag_id is None:
        return vectors
    kept: Floats = vectors[np.array(token_ids) == pooling.step_tag_id]
    return kept


def scaled(vectors: Floats, pooling: PoolingPlan) -> Floats:
    """Calibrates the logits of classes; of labels' tokens it is their difference that is calibrated, later."""
    if pooling.label_token_ids and len(pooling.label_token_ids) > 1:
        return vectors
    return calibrated(vectors, pooling)


def calibrated(logits: Floats, pooling: PoolingPlan) -> Floats:
    """Subtracts `logit_mean` and divides by `logit_sigma`."""
    if (pooling.logit_mean, pooling.logit_sigma) == (0.0, 1.0):
        return logits
    return np.asarray((logits - pooling.logit_mean) / pooling.logit_sigma, np.float32)


def cut(vectors: Floats, dimensions: int | None) -> Floats:
    """Keeps the first numbers of each vector."""
    return vectors if dimensions is None else np.ascontiguousarray(vectors[:, :dimensions])


def activated(vectors: Floats, kind: VectorActivation) -> Floats:
    """Applies an activation to each row."""
    match kind:
        case "normalize":
            lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
            return np.asarray(vectors / np.maximum(lengths, _LEAST_LENGTH), np.float32)
        case "sigmoid":
            return np.asarray(1.0 / (1.0 + np.exp(-vectors.astype(np.float64))), np.float32)
        case "softmax":
            weights = np.exp(vectors.astype(np.float64) - vectors.max(axis=-1, keepdims=True))
            return np.asarray(weights / weights.sum(axis=-1, keepdims=True), np.float32)
        case "none":
            return vectors


def check_dimensions(pooling: PoolingPlan, dimensions: int | None, field: str) -> None:
    """Raises ApiError 400 for a length that the model's vectors cannot have."""
    if dimensions is None or dimensions == pooling.width:
        return
    allowed = pooling.matryoshka_dimensions
    if allowed is None:
        message = (
            f"this model's vectors have {pooling.width} numbers, and it was not trained to have them cut;"
            " if it was, set matryoshka_dimensions in model.override_pooler_config"
        )
        raise invalid(field, message, "unsupported_parameter")
    if not 0 < dimensions < pooling.width or (allowed and dimensions not in allowed):
        named = ", ".join(map(str, allowed)) if allowed else f"1 to {pooling.width}"
        raise invalid(field, f"{field} is {dimensions}; this model has {named}", "invalid_value")


def as_base64(vectors: Floats) -> str:
    return base64.b64encode(vectors.astype("<f4", copy=False).tobytes()).decode()


def typed(vectors: Floats, kind: EmbeddingType) -> Any:
    """Returns vectors in one of Cohere's types, as values that orjson writes.

    int8 and uint8: each vector's numbers over its largest one, times 127 (plus 128). binary and ubinary: the signs,
    eight in a byte, first ones in the high bits; binary is 128 less.
    """
    if kind == "float":
        return vectors
    if kind == "base64":
        return [as_base64(vector) for vector in vectors]
    if kind in ("binary", "ubinary"):
        bits = np.packbits(vectors > 0, axis=-1)
        return bits if kind == "ubinary" else np.ascontiguousarray((bits.astype(np.int16) - 128).astype(np.int8))
    largest = np.maximum(np.abs(vectors).max(axis=-1, keepdims=True), _LEAST_LENGTH)
    numbers = np.rint(vectors / largest * 127)
    return numbers.astype(np.int8) if kind == "int8" else (numbers + 128).astype(np.uint8)


def similarity(query: Floats, document: Floats) -> float:
    """Returns the cosine of two vectors; of several each, the sum over the query's of its best match (MaxSim)."""
    products = activated(query, "normalize") @ activated(document, "normalize").T
    return float(products.max(axis=-1).sum())


def refuse_task(pooling: PoolingPlan, wanted: str, routes: str) -> ApiError:
    """Makes the refusal of a route whose task the model does not have."""
    message = f"this model is served to {pooling.task}, and this route is for models that {wanted}; it has {routes}"
    return invalid("model", message, "unsupported_task")
