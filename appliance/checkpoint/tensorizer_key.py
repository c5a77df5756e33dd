"""The secret that opens an encrypted file of tensorizer. No error has any of it."""

import secrets
from pathlib import Path
from typing import Any, Final

from appliance.base.extras import import_extra
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.loader_choice import CheckpointKey, Secret
from appliance.checkpoint.tensorizer_seal import MAC_BYTES, SALT_BYTES, Derivation

FIELD: Final = "loading.model_loader_extra_config"
OPTIONS: Final[dict[Secret, str]] = {"key": "encryption_keyfile", "password": "encryption_password_file"}
EXTRA: Final = "tensorizer"
KEY_BYTES: Final = 32
MIXED: Final = "is not encrypted, and others of the checkpoint are"
PLAIN: Final = "a key is given, and the file is not encrypted: anybody could have written it"
PASSES: Final = 3  # the library's: half a second
MEMORY_BYTES: Final = 1 << 28
_MAX_PASSWORD_BYTES: Final = 4096


def read_secret(key: CheckpointKey) -> bytes:
    """Returns the key of a file, or the password without the end of its line. Raises CheckpointError."""
    where = f"{FIELD}.{OPTIONS[key.holds]}"
    try:
        with Path(key.path).open("rb") as file:
            found = file.read(_MAX_PASSWORD_BYTES + 1)
    except OSError as error:
        hint = "a relative path starts at the folder of the spec"
        raise CheckpointError(where, f"the file cannot be read: {error.strerror}", hint) from error
    if key.holds == "key":
        if len(found) != KEY_BYTES:
            hint = f"a key is {KEY_BYTES} bytes as they are, not spelled out; a password is {OPTIONS['password']}"
            raise CheckpointError(where, f"the file does not have the {KEY_BYTES} bytes of a key", hint)
        return found
    password = found.rstrip(b"\r\n")
    if not 0 < len(password) <= _MAX_PASSWORD_BYTES:
        raise CheckpointError(where, f"the file has no password of 1 to {_MAX_PASSWORD_BYTES} bytes")
    return password


def check_key(key: CheckpointKey) -> None:
    """Raises CheckpointError if there is no such key, and MissingExtraError if nothing here could use it."""
    _library("secret")
    read_secret(key)


class SecretBoxes:
    """Opens pieces with the key of a file, or with that of its password, which is made once."""

    def __init__(self, key: CheckpointKey) -> None:
        """Raises CheckpointError or MissingExtraError."""
        self._library, self._errors = _library("secret"), _library("exceptions")
        self._key, self._secret = key, read_secret(key)
        self._made: tuple[Derivation, Any] | None = None

    def box(self, file: str, derivation: Derivation | None) -> Any:
        """Returns the library's SecretBox of a tensor of `file`. Raises CheckpointError."""
        if self._key.holds == "key":
            return self._library.SecretBox(self._secret)
        if derivation is None:
            hint = f"give that key, as {OPTIONS['key']}"
            raise CheckpointError(file, "is encrypted with a key, and not with that of a password", hint)
        if self._made is None:
            self._made = derivation, self._library.SecretBox(_derived(file, self._secret, derivation))
        if self._made[0] != derivation:  # each could take seconds
            raise CheckpointError(file, "makes the keys of its tensors in several ways, and the library in one")
        return self._made[1]

    def opened(self, box: Any, sealed: bytes, nonce: bytes) -> bytes | None:
        """Returns the plain bytes of a piece, MAC first; None if the MAC does not fit."""
        try:
            plain: bytes = box.decrypt(sealed, nonce)
        except self._errors.CryptoError:
            return None
        return plain


class Sealer:
    """Encrypts pieces with the key of a file, or with that of its password and a new salt."""

    def __init__(self, key: CheckpointKey) -> None:
        """Raises CheckpointError or MissingExtraError."""
        salt = secrets.token_bytes(SALT_BYTES)
        self.derivation = Derivation(PASSES, MEMORY_BYTES, salt) if key.holds == "password" else None
        self._box = SecretBoxes(key).box(OPTIONS[key.holds], self.derivation)

    def sealed(self, plain: bytes, nonce: bytes) -> tuple[bytes, bytes]:
        """Returns the MAC and the encrypted bytes. Never give a nonce twice."""
        both = self._box.encrypt(plain, nonce).ciphertext
        return both[:MAC_BYTES], both[MAC_BYTES:]


def _derived(file: str, password: bytes, derivation: Derivation) -> bytes:
    argon2id, errors = _library("pwhash.argon2id"), _library("exceptions")
    try:
        key: bytes = argon2id.kdf(KEY_BYTES, password, derivation.salt, derivation.passes, derivation.memory_bytes)
    except (errors.ValueError, errors.TypeError, errors.RuntimeError, MemoryError) as error:
        what = f"{derivation.passes} passes over {derivation.memory_bytes} bytes"
        raise CheckpointError(file, f"no key can be made of the password with {what}") from error
    return key


def _library(module: str) -> Any:
    return import_extra(f"nacl.{module}", extra=EXTRA, asked_by="an encrypted file of tensorizer")
