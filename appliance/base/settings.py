"""The process's own settings, from the environment: checked, and described for the reference page.

Importing this costs a verb tens of milliseconds, so it is imported where a setting is read. The folders of state and
cache, which `plan` and the engine need too, are told by `environ` without it.
"""

import os.path
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import AnyHttpUrl, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from appliance.base import environ
from appliance.base.errors import ApplianceError, ExitCode
from appliance.base.log import LogFormat

LogLevel = Literal["debug", "info", "warning", "error"]
_FOLDER: Final = "a folder, which need not be there yet"
_TEXT: Final = "a text"


class SettingsError(ApplianceError):
    """A variable of the environment has a value that it does not take."""

    exit_code = ExitCode.INVALID


def _setting(variable: str, doc: str, takes: str, unset: str, **default: Any) -> Any:
    """unset: what the reference page says of a variable that is not set."""
    extra: Any = {"takes": takes, "unset": unset}
    return Field(validation_alias=variable, description=doc, json_schema_extra=extra, **default)


class Settings(BaseSettings):
    """What this process reads of its environment for itself. An empty variable is one that is not set."""

    model_config = SettingsConfigDict(case_sensitive=True, env_ignore_empty=True, extra="ignore", frozen=True)

    state: Path = _setting(
        environ.STATE_VARIABLE,
        "Where deployments keep what runs, and what was applied.",
        _FOLDER,
        "`appliance` in `$XDG_STATE_HOME`, else `~/.local/state/appliance`",
        default_factory=environ.state_dir,
    )
    cache: Path = _setting(
        environ.CACHE_VARIABLE,
        "Where downloads are kept, and what is made of them.",
        _FOLDER,
        "`appliance` in `$XDG_CACHE_HOME`, else `~/.cache/appliance`",
        default_factory=environ.cache_dir,
    )
    api_key: SecretStr | None = _setting(
        "APPLIANCE_API_KEY",
        "The key that `chat`, `complete` and `bench serve` send; `--api-key` comes before it.",
        _TEXT,
        "no key is sent",
        default=None,
    )
    debug: bool = _setting(
        "APPLIANCE_DEBUG", "Whether an error shows where it happened.", "true or false", "false", default=False
    )
    log_level: LogLevel = _setting(
        "APPLIANCE_LOG_LEVEL",
        "What commands with an engine of their own (`batch`, `bench`, `tune`) log on standard error."
        " A server's level is `observability.logs.level` of its spec.",
        "debug, info, warning or error",
        "warning",
        default="warning",
    )
    log_format: LogFormat = _setting(
        "APPLIANCE_LOG_FORMAT", "How those logs are written.", "text or json", "text", default="text"
    )
    hub_token: SecretStr | None = _setting(
        "HF_TOKEN",
        "The token for gated and private models of the Hugging Face hub; `loading.hf_token` of a spec comes before it.",
        _TEXT,
        "the token of `hf auth login`, if any",
        default=None,
    )
    hub_endpoint: AnyHttpUrl | None = _setting(
        "HF_ENDPOINT",
        "The hub itself, where it is a mirror or one's own.",
        "an address that begins with http:// or https://",
        "`https://huggingface.co`",
        default=None,
    )

    @field_validator("state", "cache")
    @classmethod
    def _expanded(cls, folder: Path) -> Path:
        """Raises ValueError for what is there and is no folder."""
        path = folder.expanduser()
        if os.path.exists(path) and not os.path.isdir(path):  # Path's own raise for a folder that may not be read
            raise ValueError("is a file")
        return path


def read_settings() -> Settings:
    """Reads the settings from the environment. Raises SettingsError, with one sentence for each wrong variable."""
    try:
        return Settings()
    except ValidationError as error:
        raise SettingsError("; ".join(_told(each["loc"], each["input"]) for each in error.errors())) from None


def own_api_key() -> str | None:
    """Raises SettingsError."""
    key = read_settings().api_key
    return key.get_secret_value() if key is not None else None


def _told(place: tuple[int | str, ...], value: object) -> str:
    """A secret is never repeated."""
    field = next(each for each in Settings.model_fields.values() if each.validation_alias == place[0])
    shown = "***" if "Secret" in str(field.annotation) else repr(str(value))
    return f"{place[0]} is {shown}, and takes {_extra(field.json_schema_extra)['takes']}"


def described() -> list[tuple[str, str, str, str]]:
    """Variable, what it takes, what holds without it, and its meaning, of every setting."""
    rows = []
    for field in Settings.model_fields.values():
        extra = _extra(field.json_schema_extra)
        rows.append((str(field.validation_alias), extra["takes"], extra["unset"], str(field.description)))
    return rows


def _extra(given: Any) -> dict[str, str]:
    return dict(given)
