"""A tensor of a checkpoint that somebody has in memory."""

import msgspec


class NamedTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor under its name in the checkpoint. dtype: a plain one as in safetensors, in lower case: f32, f16, bf16.
    data: its elements in rows, little-endian."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes
