"""Variables of the environment that a server was started with: a few are fields of a spec, the rest is told."""

import re
from dataclasses import dataclass
from typing import Final

from appliance.importing.draft import Draft
from appliance.importing.keys import place_keys
from appliance.importing.words import MASK, is_reference, is_secret

_REFERENCE: Final = re.compile(r"^\$\{?([A-Za-z_]\w*)")
_DEFAULTED: Final = re.compile(r"\$\{([A-Za-z_]\w*):?-([^}]*)\}")
_TOKENS: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_API_KEY: Final = "VLLM_API_KEY"
_OFFLINE: Final = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_TRUE: Final = ("1", "true", "yes", "on")
_REASON: Final = "a variable of the environment; set it where the appliance runs, if it means anything"


@dataclass(frozen=True, slots=True)
class Variable:
    """value None: that of the machine, as in `docker run -e NAME`. flag: what stood before it, such as `-e`."""

    name: str
    value: str | None
    flag: str = ""

    @property
    def origin(self) -> str:
        """The variable as the user wrote it, with secrets masked, because origins are printed into files."""
        if self.value is None:
            shown = self.name
        else:
            is_hidden = is_secret(self.name) and not is_reference(self.value)
            shown = f"{self.name}={MASK if is_hidden else self.value}"
        return f"{self.flag} {shown}".strip()


def read_variable(text: str, flag: str = "") -> Variable:
    """`NAME=VALUE`, or `NAME`."""
    name, equals, value = text.partition("=")
    return Variable(name, value if equals else None, flag)


def place_variable(draft: Draft, variable: Variable) -> None:
    if variable.name in _TOKENS:
        place_token(draft, variable.value, variable.origin, variable.name)
    elif variable.name == _API_KEY and variable.value:
        place_keys(draft, [variable.value], variable.origin)
    elif variable.name in _OFFLINE and (variable.value or "").lower() in _TRUE:
        draft.put("loading.offline", True, variable.origin)
    else:
        draft.leave(variable.origin, _REASON)


def with_defaults(text: str) -> tuple[str, list[str]]:
    """`${NAME:-default}` as its default, and a note for each; a secret stays `${NAME}`."""
    notes: list[str] = []

    def fill(found: re.Match[str]) -> str:
        if is_secret(found[1]):
            return f"${{{found[1]}}}"
        notes.append(f"{found[0]}: its default is in this spec")
        return found[2]

    return _DEFAULTED.sub(fill, text), notes


def place_token(draft: Draft, value: str | None, origin: str, name: str = _TOKENS[0]) -> None:
    """A token of the hub is never written into a spec: the spec names the variable that holds it."""
    found = _REFERENCE.match(value or "")
    draft.put("loading.hf_token", f"${{env:{found[1] if found else name}}}", origin)
    if value is not None and found is None:
        draft.notes.append(f"{origin}: the token is not written down; set {name} where the appliance runs")
