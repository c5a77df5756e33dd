"""Reads the token ids that a checkpoint names for the ends of texts, without those outside its vocabulary."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from appliance.checkpoint.facts import LeftOut


@dataclass(slots=True)
class TokenIds:
    """Reads the ids of one checkpoint, and records the ids that it leaves out."""

    vocab_size: int
    left_out: list[LeftOut] = field(default_factory=list)

    def one(self, file: str, name: str, value: Any) -> int | None:
        """Returns the id under `name`; None if there is none, or none in the vocabulary."""
        return next(iter(self.several(file, name, value)), None)

    def several(self, file: str, name: str, value: Any) -> list[int]:
        """Returns an id or a list of ids as a list, in order, each once."""
        stated = value if isinstance(value, list) else [] if value is None else [value]
        wrong = [each for each in stated if not self._has(each)]
        for each in dict.fromkeys(map(repr, wrong)):
            self.left_out.append(LeftOut(file=file, field=name, value=each, allowed=self._allowed))
        return list(dict.fromkeys(each for each in stated if self._has(each)))

    def first_stated(self, name: str, files: Mapping[str, Mapping[str, Any]]) -> list[int]:
        """Returns the ids of the first file that names an id in the vocabulary."""
        found = (self.several(file, name, values.get(name)) for file, values in files.items())
        return next(filter(None, found), [])

    @property
    def _allowed(self) -> str:
        return f"a token id from 0 to {self.vocab_size - 1}"

    def _has(self, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < self.vocab_size


def id_of(content: Any, entries: Any) -> int | None:
    """Returns the id of a token by its text, from tokenizer_config.json's added_tokens_decoder; None if not there."""
    text = content.get("content") if isinstance(content, Mapping) else content
    if not isinstance(text, str) or not isinstance(entries, Mapping):
        return None
    return next((int(place) for place in _places(text, entries.items())), None)


def _places(text: str, entries: Iterable[tuple[Any, Any]]) -> Iterable[str]:
    for place, entry in entries:
        if isinstance(entry, Mapping) and entry.get("content") == text and str(place).isdecimal():
            yield place
