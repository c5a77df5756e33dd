"""What reads a checkpoint whose format has options, or whose loader is the operator's own."""

from typing import Any, Final

import msgspec


class LoaderChoice(msgspec.Struct, frozen=True, kw_only=True):
    """path: the dotted path of a loader of the operator's own. options: `loading.model_loader_extra_config`."""

    path: str | None = None
    options: dict[str, Any] = {}


NO_LOADER: Final = LoaderChoice()
