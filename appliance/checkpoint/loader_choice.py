"""What reads a checkpoint whose format has options, or whose loader is the operator's own."""

from typing import Any, Final, Literal

import msgspec

Secret = Literal["key", "password"]


class CheckpointKey(msgspec.Struct, frozen=True, kw_only=True):
    """Where the secret lies that opens an encrypted checkpoint. holds: the key itself, or a password that makes it."""

    path: str
    holds: Secret


class LoaderChoice(msgspec.Struct, frozen=True, kw_only=True):
    """path: the dotted path of a loader of the operator's own. options: of it, `loading.model_loader_extra_config`.
    key: of an encrypted file of tensorizer."""

    path: str | None = None
    options: dict[str, Any] = {}
    key: CheckpointKey | None = None


NO_LOADER: Final = LoaderChoice()
