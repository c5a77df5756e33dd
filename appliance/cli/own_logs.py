"""The logs of an engine that runs in the process of a command."""

from appliance.base.log import configure
from appliance.base.settings import read_settings


def configure_own_logs() -> None:
    """Writes logs to standard error, with the level and format of the environment. Raises SettingsError."""
    settings = read_settings()
    configure(settings.log_level, settings.log_format)
