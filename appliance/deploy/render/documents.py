"""YAML text of plain data: keys in the order given, long texts as blocks."""

from collections.abc import Sequence
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Writes lines as lines, and every object in full."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def dump(documents: Sequence[dict[str, Any]], comment: str = "") -> str:
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
