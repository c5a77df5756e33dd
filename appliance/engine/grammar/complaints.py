"""Translates a back-end's messages into our own words: the originals name internals and quote the built grammar."""

import re

_MEANINGS: tuple[tuple[str, str], ...] = (
    ("Unsatisfiable schema", "nothing satisfies it"),
    ("NoExtension", "nothing satisfies it"),
    ("does not satisfy", "nothing satisfies it"),
    ("oneOf constraints are not supported", "its branches are not seen to exclude one another; write anyOf"),
    ("Unimplemented keys", "the keyword is not enforced by the back-end"),
    ("min/maxProperties only supported", "it is enforced only where all properties are required"),
    ("circular references with sibling keys", "a reference in a circle may have nothing beside it"),
    ("atternProperties", "its patterns may match the same key"),
    ("are not disjoint", "its patterns may match the same key"),
    ("too deeply nested", "it is nested too deeply"),
    ("recursion limit", "it is nested too deeply"),
    ("too many digits", "it has too many digits"),
)
_TOO_COMPLEX = re.compile(
    r"fuel|[Tt]oo (many|complex|large)|max is|limit|max_|exhausted|schema size|consider making", re.IGNORECASE
)
_OF_REGEX = re.compile(r"\berror: ([a-z][a-z0-9 ,()'-]{3,90})")
_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ?")
_REFERENCE = re.compile(r"unknown (?:name|grammar|special token):? *\"?([@<\w.|>-]{1,60})")


def meaning(message: str, *, has_places: bool = True) -> str:
    """Returns one line in our words; only for an error in a regular expression it keeps the library's.

    has_places: the message's lines and columns are those of the text that the client sent.
    """
    for words, reason in _MEANINGS:
        if words in message:
            return reason
    place = _PLACE.match(message)
    where = f"line {place[1]}, column {place[2]}: " if place is not None and has_places else ""
    if (found := _OF_REGEX.search(message)) is not None:
        return f"{where}it holds no regular expression that can be used: {found[1].strip()}"
    if (found := _REFERENCE.search(message)) is not None:
        return f"{where}nothing is named {found[1]}"
    if _TOO_COMPLEX.search(message):
        return "it is too large or too complex"
    return f"{where}it cannot be read" if place is not None else "it cannot be compiled"
