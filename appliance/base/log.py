"""Structured logs to stderr: one line an event, as text or JSON. Values are escaped, so no value can forge a line.

log = logger("engine")
log.info("step", extra=fields(running=3, waiting=0))
"""

import json
import logging
import logging.config
import sys
import time
from pathlib import Path
from typing import Any, Literal, TextIO

from appliance.base.errors import ApplianceError

LogFormat = Literal["text", "json"]

_FIELDS = "appliance_fields"


def logger(area: str) -> logging.Logger:
    return logging.getLogger(f"appliance.{area}")


def fields(**values: Any) -> dict[str, Any]:
    """Returns the named values of an event, for the argument `extra` of a log call."""
    return {_FIELDS: values}


def configure(
    level: str = "info", form: LogFormat = "text", stream: TextIO | None = None, config_file: str | None = None
) -> None:
    """Sends the records of `appliance.*` to `stream` (stderr). Calling it again replaces the handler.

    config_file: a configuration of Python's `logging` as JSON (its dictConfig), which decides in the place of all that.
    Raises ApplianceError when it cannot be used; the configuration before then holds.
    """
    config = _read_config(config_file) if config_file is not None else None
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonLines() if form == "json" else _TextLines())
    root = logging.getLogger("appliance")
    root.handlers[:] = [handler]
    root.propagate = False
    set_level(level)
    if config is not None:
        _use_config(config, config_file)


def set_level(level: str) -> None:
    """Sets the level of the logger `appliance` and all below it."""
    logging.getLogger("appliance").setLevel("DEBUG" if level == "trace" else level.upper())


def _read_config(path: str) -> dict[str, Any]:
    """Loggers that exist already go on, unless the file says otherwise: ours are made on import."""
    try:
        config = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise ApplianceError(f"observability.logs.log_config_file: {path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ApplianceError(f"observability.logs.log_config_file: {path} is no JSON object")
    return {"disable_existing_loggers": False, **config}


def _use_config(config: dict[str, Any], path: str | None) -> None:
    """What the file says of the logger `appliance` takes the place of the handler that we gave it."""
    root = logging.getLogger("appliance")
    before = list(root.handlers)
    if "appliance" in config.get("loggers", {}):
        root.handlers[:] = []
    elif "root" in config:
        root.handlers[:], root.propagate = [], True
    try:
        logging.config.dictConfig(config)
    except (ValueError, TypeError, AttributeError, ImportError) as error:
        root.handlers[:], root.propagate = before, False
        hint = "see the configuration dictionary schema of Python's logging"
        raise ApplianceError(f"observability.logs.log_config_file: {path}: {error}", hint=hint) from error


class _TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        area = record.name.removeprefix("appliance.")
        pairs = "".join(f" {key}={_shown(value)}" for key, value in _values(record).items())
        head = f"{moment}.{int(record.msecs):03d} {record.levelname.lower():<7} {area}: "
        return head + _one_line(record.getMessage()) + pairs


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        body = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "area": record.name.removeprefix("appliance."),
            "event": record.getMessage(),
            **_values(record),
        }
        return json.dumps(body, default=str)


def _values(record: logging.LogRecord) -> dict[str, Any]:
    values: dict[str, Any] = dict(getattr(record, _FIELDS, {}))
    if record.exc_info and record.exc_info[1] is not None:
        values["error"] = repr(record.exc_info[1])
        values["traceback"] = logging.Formatter().formatException(record.exc_info)
    return values


def _shown(value: Any) -> str:
    text = str(value)
    return text if text.isprintable() and text and " " not in text else json.dumps(text)


def _one_line(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)[1:-1]
