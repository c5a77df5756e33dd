"""Facts of tensors that lie in no file."""

from appliance.checkpoint.facts import Storage, TensorFacts


def tensor(
    name: str,
    shape: tuple[int, ...],
    storage: Storage,
    size_bytes: int,
    *,
    stored_name: str = "",
    scale: TensorFacts | None = None,
    zero_point: TensorFacts | None = None,
) -> TensorFacts:
    return TensorFacts(
        name=name,
        stored_name=stored_name or name,
        shape=shape,
        storage=storage,
        file="f",
        offset_bytes=0,
        size_bytes=size_bytes,
        scale=scale,
        zero_point=zero_point,
    )
