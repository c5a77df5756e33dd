"""Block hashes: each extends its parent's, so equal hashes mean equal tokens from the start of the sequence."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from appliance.base.cbor import CborValue, cbor
from appliance.engine.core.block_pool import BlockHash
from appliance.plan.types import HashAlgorithm


@dataclass(frozen=True, slots=True)
class PrefixNamespace:
    """What prefixes must have in common to be one, beside their tokens. adapter: its digest. salt: a client's own.
    weights: the digest of weights that replaced the planned ones; None: these are the planned ones."""

    adapter: str | None = None
    salt: str | None = None
    weights: str | None = None


class Hasher(Protocol):
    """`first` hashes the first block of a namespace; `extend` hashes a prefix that is one block longer.

    embeds: the digest of the embeddings that the block's first tokens have in place of ids; None: there are none.
    """

    def first(self, namespace: PrefixNamespace, token_ids: Sequence[int], embeds: bytes | None = None) -> BlockHash: ...

    def extend(self, parent: BlockHash, token_ids: Sequence[int], embeds: bytes | None = None) -> BlockHash: ...


class BuiltinHasher:
    """Python's tuple hash: 64 bits, fast, not proof against a deliberate collision."""

    def first(self, namespace: PrefixNamespace, token_ids: Sequence[int], embeds: bytes | None = None) -> BlockHash:
        return self.extend(hash((namespace.adapter, namespace.salt, namespace.weights)), token_ids, embeds)

    def extend(self, parent: BlockHash, token_ids: Sequence[int], embeds: bytes | None = None) -> BlockHash:
        return hash((parent, tuple(token_ids)) if embeds is None else (parent, tuple(token_ids), embeds))


class Sha256Hasher:
    """SHA-256 of the parent's digest, the tokens as 32-bit words, and the digest of embeddings if there are any."""

    def first(self, namespace: PrefixNamespace, token_ids: Sequence[int], embeds: bytes | None = None) -> BlockHash:
        digest = sha256(b"appliance-prefix-v1")
        named = namespace.adapter, namespace.salt
        for part in named if namespace.weights is None else (*named, namespace.weights):
            encoded = b"-" if part is None else b"+" + part.encode()
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
        return self.extend(digest.digest(), token_ids, embeds)

    def extend(self, parent: BlockHash, token_ids: Sequence[int], embeds: bytes | None = None) -> BlockHash:
        assert isinstance(parent, bytes)
        return sha256(parent + array("I", token_ids).tobytes() + (embeds or b"")).digest()


class Sha256CborHasher:
    """vLLM's `sha256_cbor`: SHA-256 of the canonical CBOR of (parent, tokens, extra keys), the same in any process.

    The parent of a first block is the hash that vLLM has under PYTHONHASHSEED=0. A first block's salt is an extra key,
    as there. So is an adapter, by its digest in an array of its own, which no salt equals; vLLM has its name there, so
    hashes of adapters differ. New weights are an array of two, and so are embeddings, of every block that has some.
    """

    def __init__(self) -> None:
        self._none = sha256(cbor("0")).digest()

    def first(self, namespace: PrefixNamespace, token_ids: Sequence[int], embeds: bytes | None = None) -> BlockHash:
        keys: tuple[CborValue, ...] = () if namespace.adapter is None else ((namespace.adapter,),)
        keys += () if namespace.salt is None else (namespace.salt,)
        keys += () if namespace.weights is None else (("weights", namespace.weights),)
        keys += () if embeds is None else (("embeds", embeds),)
        return sha256(cbor((self._none, tuple(token_ids), keys or None))).digest()

    def extend(self, parent: BlockHash, token_ids: Sequence[int], embeds: bytes | None = None) -> BlockHash:
        keys = None if embeds is None else (("embeds", embeds),)
        return sha256(cbor((parent, tuple(token_ids), keys))).digest()


HASHERS: dict[HashAlgorithm, Callable[[], Hasher]] = {
    "sha256": Sha256Hasher,
    "sha256_cbor": Sha256CborHasher,
    "builtin": BuiltinHasher,
}
