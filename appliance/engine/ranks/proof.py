"""How a leader and a rank on another machine show each other that both know the token of the group.

Each sends a number that nobody used before, and the digest (HMAC-SHA256) of both numbers by the token: the rank first,
so that a stranger learns nothing. What is said afterwards is neither signed nor encrypted.
"""

import hashlib
import hmac
import os
from multiprocessing.connection import Connection
from typing import Literal

from appliance.base.environ import RANKS_TOKEN_VARIABLE, get
from appliance.base.errors import ApplianceError

LEAST_TOKEN_CHARACTERS = 16
_NONCE_BYTES = 32
_MOST_BYTES = 256  # of a message of a stranger

Role = Literal["leader", "rank"]


class ProofError(ApplianceError):
    """The other side has another token, or is no rank and no leader."""


def ranks_token() -> str:
    """Returns the token by which ranks of several machines know one another. Raises ApplianceError if there is none."""
    token = get(RANKS_TOKEN_VARIABLE) or ""
    if len(token) < LEAST_TOKEN_CHARACTERS:
        what = "is not set" if not token else f"has {len(token)} characters"
        raise ApplianceError(
            f"{RANKS_TOKEN_VARIABLE} {what}: ranks of several machines know one another by it",
            hint=f"set the same {LEAST_TOKEN_CHARACTERS} characters or more on all, as of `openssl rand -hex 32`",
        )
    return token


def prove_to_leader(connection: Connection, token: str) -> None:
    """Shows the leader the token, and has it show it. Raises ProofError, and OSError or EOFError if it is gone."""
    theirs, own = connection.recv_bytes(_MOST_BYTES), os.urandom(_NONCE_BYTES)
    connection.send_bytes(own + _proof(token, "rank", own, theirs))
    if not hmac.compare_digest(_answer(connection), _proof(token, "leader", theirs, own)):
        raise ProofError("the leader has another token")


def check_rank(connection: Connection, token: str) -> None:
    """Has a rank show the token, and shows it. Raises ProofError, and OSError or EOFError if it is gone."""
    own = os.urandom(_NONCE_BYTES)
    connection.send_bytes(own)
    answer = _answer(connection)
    theirs, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(token, "rank", theirs, own)):
        connection.send_bytes(b"")
        raise ProofError("it has another token")
    connection.send_bytes(_proof(token, "leader", own, theirs))


def _answer(connection: Connection) -> bytes:
    try:
        return connection.recv_bytes(_MOST_BYTES)
    except OSError as error:
        raise ProofError(f"it said nothing that a rank says: {error}") from error


def _proof(token: str, role: Role, own: bytes, theirs: bytes) -> bytes:
    return hmac.digest(token.encode(), role.encode() + own + theirs, hashlib.sha256)
