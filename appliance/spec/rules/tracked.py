"""A view of a section that records which fields a rule read, so that its findings on guessed values can be dropped."""

from typing import Any

from appliance.spec.fields import Section


class Tracked:
    """Reads like the section that it wraps, and adds the path of every field that is not a section to `reads`."""

    def __init__(self, section: Section, path: str, reads: set[str]) -> None:
        self._section = section
        self._path = path
        self._reads = reads

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._section, name)
        if name == "model_fields_set":
            self._reads.add(f"{self._path}.*")
            return value
        path = f"{self._path}.{name}" if self._path else name
        if isinstance(value, Section):
            return Tracked(value, path, self._reads)
        self._reads.add(path)
        if isinstance(value, list):
            return [Tracked(item, path, self._reads) if isinstance(item, Section) else item for item in value]
        return value


def touches(reads: set[str], pruned: str) -> bool:
    """Returns whether these reads include the value at `pruned`, a parent of it or a part of it."""
    holder = pruned.rpartition(".")[0]
    return f"{holder}.*" in reads or any(
        read == pruned or _is_below(read, pruned) or _is_below(pruned, read) for read in reads
    )


def _is_below(path: str, outer: str) -> bool:
    return path.startswith((outer + ".", outer + "["))
