"""The token ids that a checkpoint names for the ends of texts, without those that its model cannot give."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from appliance.checkpoint.facts import LeftOut


@dataclass(slots=True)
class TokenIds:
    """Reads ids of one checkpoint and writes down what it leaves out."""

    vocab_size: int
    left_out: list[LeftOut] = field(default_factory=list)

    def one(self, file: str, name: str, value: Any) -> int | None:
        """The id under `name`; None where there is none, or none that the model has."""
        return next(iter(self.several(file, name, value)), None)

    def several(self, file: str, name: str, value: Any) -> list[int]:
        """An id or a list of them, in order, each once."""
        stated = value if isinstance(value, list) else [] if value is None else [value]
        wrong = [each for each in stated if not self._has(each)]
        for each in dict.fromkeys(map(repr, wrong)):
            self.left_out.append(LeftOut(file=file, field=name, value=each, allowed=self._allowed))
        return list(dict.fromkeys(each for each in stated if self._has(each)))

    def first_stated(self, name: str, files: Mapping[str, Mapping[str, Any]]) -> list[int]:
        """What the first file says that names an id of the model; a file that names none is passed over."""
        found = (self.several(file, name, values.get(name)) for file, values in files.items())
        return next(filter(None, found), [])

    @property
    def _allowed(self) -> str:
        return f"a token id from 0 to {self.vocab_size - 1}"

    def _has(self, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < self.vocab_size


def id_of(content: Any, entries: Any) -> int | None:
    """The id of a token by its text, from tokenizer_config.json's added_tokens_decoder."""
    text = content.get("content") if isinstance(content, Mapping) else content
    if not isinstance(text, str) or not isinstance(entries, Mapping):
        return None
    return next((int(place) for place in _places(text, entries.items())), None)


def _places(text: str, entries: Iterable[tuple[Any, Any]]) -> Iterable[str]:
    for place, entry in entries:
        if isinstance(entry, Mapping) and entry.get("content") == text and str(place).isdecimal():
            yield place
