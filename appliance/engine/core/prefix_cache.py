"""Block hashes: each extends its parent's, so equal hashes mean equal tokens from the start of the sequence."""

from array import array
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Literal, Protocol

from appliance.engine.core.block_pool import BlockHash


class Hasher(Protocol):
    """`root` hashes the empty prefix of a namespace; `extend` hashes a prefix that is one block longer."""

    def root(self, adapter: str | None, salt: str | None) -> BlockHash: ...

    def extend(self, parent: BlockHash, token_ids: Sequence[int]) -> BlockHash: ...


class BuiltinHasher:
    """Python's tuple hash: 64 bits, fast, not proof against a deliberate collision."""

    def root(self, adapter: str | None, salt: str | None) -> BlockHash:
        return hash((adapter, salt))

    def extend(self, parent: BlockHash, token_ids: Sequence[int]) -> BlockHash:
        return hash((parent, tuple(token_ids)))


class Sha256Hasher:
    """SHA-256 of the parent's digest and the tokens as 32-bit words."""

    def root(self, adapter: str | None, salt: str | None) -> BlockHash:
        digest = sha256(b"appliance-prefix-v1")
        for part in (adapter, salt):
            encoded = b"-" if part is None else b"+" + part.encode()
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
        return digest.digest()

    def extend(self, parent: BlockHash, token_ids: Sequence[int]) -> BlockHash:
        assert isinstance(parent, bytes)
        return sha256(parent + array("I", token_ids).tobytes()).digest()


HASHERS: dict[Literal["sha256", "builtin"], Callable[[], Hasher]] = {"sha256": Sha256Hasher, "builtin": BuiltinHasher}
