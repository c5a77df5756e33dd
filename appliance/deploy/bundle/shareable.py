"""A spec that may leave the machine: valid, resolved, and without what came from outside or is secret."""

from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr

from appliance.base.errors import SpecError
from appliance.deploy.bundle.masking import Masker
from appliance.spec import LoadedSpec, load_text
from appliance.spec.compose import dump_yaml
from appliance.spec.data import as_data
from appliance.spec.fields import Section
from appliance.spec.paths import format_path, parse_path
from appliance.spec.tree import Field, fields_of
from appliance.spec.value_hints import choices_of


@dataclass(frozen=True, slots=True)
class ShareableSpec:
    text: str
    masked: tuple[str, ...]  # paths whose values are stand-ins or gone
    secrets: frozenset[str]  # the texts that stood there; not for any file


def shareable_spec(loaded: LoadedSpec) -> ShareableSpec:
    """What was written, and no more: comments and `x-` keys are not in it.

    Numbers, booleans and choices from `${...}` stay: no secret has such a type. Other texts from there, secret fields
    and digests of keys are left out or stood in for. A stand-in that its field does not take is left out.
    """
    shared = _shared(loaded, frozenset())
    try:
        load_text(shared.text, environ={})
    except SpecError as error:
        return _shared(loaded, frozenset(each.path for each in error.diagnostics))
    return shared


def _shared(loaded: LoadedSpec, left_out: frozenset[str]) -> ShareableSpec:
    writer = _Writer(loaded, left_out)
    data = writer.section(loaded.spec, "")
    return ShareableSpec(dump_yaml(data), tuple(writer.masked), frozenset(writer.secrets))


class _Writer:
    def __init__(self, loaded: LoadedSpec, left_out: frozenset[str]) -> None:
        self._loaded = loaded
        self._left_out = left_out
        self._masker = Masker()
        self.masked: list[str] = []
        self.secrets: set[str] = set()

    def section(self, section: Section, path: str) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for found in fields_of(type(section), path):
            if found.name not in section.model_fields_set or found.path == "include":
                continue
            value = getattr(section, found.name)
            if isinstance(value, Section):
                result[found.name] = self.section(value, found.path)
            elif found.child is not None and isinstance(value, list):
                result[found.name] = [self.section(item, f"{found.path}[{index}]") for index, item in enumerate(value)]
            elif isinstance(value, SecretStr):
                self._keep(found.path, value.get_secret_value())
            else:
                shown = self._value(found, as_data(value))
                if found.path not in self._left_out:
                    result[found.name] = shown
        return result

    def _value(self, found: Field, value: Any) -> Any:
        if found.path.startswith("endpoints.auth.keys[") and found.name == "hash":
            return f"sha256:{self._keep(found.path, value):064x}"
        return self._written(found, value, found.path)

    def _keep(self, path: str, secret: str) -> int:
        """Notes that a value does not leave the machine; how many do not so far."""
        self.masked.append(path)
        self.secrets.add(secret)
        return len(self.masked)

    def _written(self, found: Field, value: Any, path: str) -> Any:
        if isinstance(value, dict):
            inner = {key: self._written(found, item, _below(path, key)) for key, item in value.items()}
            return self._masker.named(inner)
        if isinstance(value, list):
            return [self._written(found, item, f"{path}[{index}]") for index, item in enumerate(value)]
        if path in self._loaded.secrets and isinstance(value, str) and value not in choices_of(found.info.annotation):
            return f"masked-{self._keep(path, value)}"
        return self._masker.plain(value) if isinstance(value, str) else found.written(value)


def _below(path: str, key: str) -> str:
    return format_path((*parse_path(path), key))
