"""What leaves the machine: texts without keys, log lines without prompts."""

import json
import re
from collections.abc import Iterable
from typing import Any, Final

MASK: Final = "***"
MIN_SECRET_LENGTH: Final = 4  # a shorter text would be found in ordinary words
MIN_IN_DATA: Final = 8

_URL_USER = re.compile(r"(\w://)[^/@\s\"']+@")
_URL_QUERY = re.compile(r"([?&](?:[\w-]*(?:token|key|signature|sig|secret|password))=)[^&\s\"']+", re.IGNORECASE)
_NAMED = re.compile(
    r"((?:authorization|api[-_ ]?key|token|secret|password|passwd)[\"']?\s*[:=]\s*[\"']?(?:bearer\s+)?)[^\s\"',}]+",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(bearer\s+)[^\s\"',}]+", re.IGNORECASE)
_KNOWN_FORMS = re.compile(r"\b(?:sk|pk|rk|hf|ghp|gho|ghs|glpat|xox[abps]|AKIA|ASIA)[-_]?[A-Za-z0-9_-]{12,}")
SECRET_NAME = re.compile(
    r"(?:access|auth|api|hf|bearer|secret|private)[-_]?(?:token|key)|secret|password|passwd|authorization|credential",
    re.IGNORECASE,
)

_TEXT_LINE = re.compile(r"\d\d:\d\d:\d\d\.\d{3} \w+ +[\w.]+: ")
_TEXT_FIELD = re.compile(r"( )(\w+)=(\"(?:[^\"\\]|\\.)*\"|\S+)")
_SPOKEN: Final = frozenset({"prompt", "text", "sampling", "messages", "output", "input", "body"})
OTHER_LINE: Final = "(a line of another form is left out)"


class Masker:
    """Replaces known secrets, and what looks like one.

    A known secret shorter than MIN_IN_DATA is replaced in data only where it is a whole value: it may be a word.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._known = {each for each in secrets if len(each) >= MIN_SECRET_LENGTH}
        self._everywhere = _one_of(self._known)
        self._in_data = _one_of(each for each in self._known if len(each) >= MIN_IN_DATA)

    def text(self, text: str) -> str:
        """Masks a text for people to read, also what follows a word such as `password:`."""
        text = _without(self._everywhere, text)
        return _KNOWN_FORMS.sub(MASK, _BEARER.sub(rf"\1{MASK}", _NAMED.sub(rf"\1{MASK}", _without_address(text))))

    def plain(self, text: str) -> str:
        """A value, or a file of values."""
        if text in self._known:
            return MASK
        return _KNOWN_FORMS.sub(MASK, _without_address(_without(self._in_data, text)))

    def data(self, value: Any) -> Any:
        """JSON data with every text masked; keys are left alone."""
        if isinstance(value, dict):
            return {key: self.data(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(item) for item in value]
        return self.plain(value) if isinstance(value, str) else value

    def named(self, value: dict[str, Any]) -> dict[str, Any]:
        """Masks as `data` does, and masks whole every text whose key is called like a secret."""
        return {key: MASK if _is_named(key, item) else self.data(item) for key, item in value.items()}

    def log(self, text: str) -> str:
        """Log lines of both forms; what requests said is masked, other lines are left out."""
        return "".join(f"{self._log_line(line)}\n" for line in text.splitlines())

    def _log_line(self, line: str) -> str:
        if _TEXT_LINE.match(line):
            return self.text(_TEXT_FIELD.sub(_text_field, line))
        try:
            body = json.loads(line)
        except ValueError:
            return OTHER_LINE
        if not isinstance(body, dict) or not {"level", "area", "event"} <= set(body):
            return OTHER_LINE
        return self.text(json.dumps({name: _log_value(name, value) for name, value in body.items()}))


def _is_named(key: str, value: Any) -> bool:
    return isinstance(value, str) and bool(SECRET_NAME.search(key))


def _one_of(secrets: Iterable[str]) -> re.Pattern[str] | None:
    """The longest first: one may begin with another."""
    words = sorted(secrets, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, words))) if words else None


def _without(pattern: re.Pattern[str] | None, text: str) -> str:
    return text if pattern is None else pattern.sub(MASK, text)


def _without_address(text: str) -> str:
    """Without the credentials of URLs."""
    return _URL_QUERY.sub(rf"\1{MASK}", _URL_USER.sub(rf"\1{MASK}@", text))


def _text_field(matched: re.Match[str]) -> str:
    name, shown = matched[2], matched[3]
    value = json.loads(shown) if shown.startswith('"') else shown
    kept = _log_value(name, value)
    return f" {name}={shown if kept == value else json.dumps(kept)}"


def _log_value(name: str, value: Any) -> Any:
    """Keeps an exception's class and the places that it passed, not its words, which may be those of a request."""
    if name in _SPOKEN:
        return MASK
    if name == "error":
        return f"{str(value).partition('(')[0]}({MASK})"
    if name == "traceback":
        return "\n".join(line for line in str(value).splitlines() if line.startswith("  File "))
    return value
