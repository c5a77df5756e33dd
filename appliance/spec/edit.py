"""Changes values in the text of a spec and leaves everything else, comments too, as it was written."""

from collections.abc import Mapping

from appliance.spec.nodes import MappingNode, Node, ScalarNode, parse


class EditError(ValueError):
    """The text has no place for a value."""


def with_values(text: str, values: Mapping[str, int]) -> str:
    """Sets `values`, numbers by `section.field`. Raises EditError, and YamlReadError if the text is not YAML."""
    for path, value in values.items():
        section, _, name = path.partition(".")
        text = _with_value(text, section, name, str(value))
    return text


def _with_value(text: str, section: str, name: str, value: str) -> str:
    found = _entry(parse(text), section)
    if found is None:
        return f"{text.rstrip()}\n{section}:\n  {name}: {value}\n"
    lines = text.splitlines(keepends=True)
    if isinstance(found, ScalarNode) and not found.text:
        return _inserted(lines, _key_line(parse(text), section), f"  {name}: {value}\n")
    if not isinstance(found, MappingNode):
        raise EditError(f"{section} is no section, so it cannot hold {name}")
    old = _entry(found, name)
    if old is not None:
        return _replaced(lines, old, f"{section}.{name}", value)
    line, column = found.position
    if lines[line - 1][column - 1 : column] == "{":
        rest = lines[line - 1][column:]
        gap = "" if rest.lstrip().startswith("}") else ", "
        lines[line - 1] = f"{lines[line - 1][:column]}{name}: {value}{gap}{rest}"
        return "".join(lines)
    first = found.entries[0][0].position
    return _inserted(lines, first.line - 1, f"{' ' * (first.column - 1)}{name}: {value}\n")


def _entry(node: Node | None, name: str) -> Node | None:
    """Returns the value under a key of a mapping; None if there is none."""
    if not isinstance(node, MappingNode):
        return None
    return next((value for key, value in node.entries if key.text == name), None)


def _key_line(root: Node | None, section: str) -> int:
    assert isinstance(root, MappingNode), "it has the section"
    return next(key.position.line for key, _ in root.entries if key.text == section)


def _replaced(lines: list[str], old: Node, path: str, value: str) -> str:
    if not isinstance(old, ScalarNode) or not old.plain:
        raise EditError(f"{path} is not a plain value")
    line, start = old.position.line - 1, old.position.column - 1
    if lines[line][start : start + len(old.text)] != old.text:
        raise EditError(f"{path} is written in another way than as a plain value")
    lines[line] = lines[line][:start] + value + lines[line][start + len(old.text) :]
    return "".join(lines)


def _inserted(lines: list[str], at: int, line: str) -> str:
    return "".join([*lines[:at], line, *lines[at:]])
