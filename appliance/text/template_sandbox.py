"""A Jinja environment for untrusted templates: Hugging Face's extensions, no unsafe attributes, and bounds on time, on
output and on the size of every value that a template can build.

The compiler puts a counter into the bodies of loops and macros, so no loop runs past the deadline. Operators and calls
that multiply text are checked before they run.
"""

import datetime
import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_SECONDS = 2.0
MAX_CHARACTERS = 16 << 20  # of the output, and of every text that a template builds
MAX_ITEMS = 1 << 20  # of a list that a template builds
_MAX_NUMBER = 1 << 256
_TICKS_BETWEEN_LOOKS = 64
_TICK, _JOIN = "_appliance_tick", "_appliance_join"
_WIDTH = re.compile(r"[%:][^}]*?(\d{4,}|\*|\{)")  # a width in a format string that is long or computed
_PADDED = "the chat template pads text to a width, which is not allowed"
_GROWING_METHODS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "replace", "join", "translate"})


class TemplateBoundError(jinja2.TemplateError):
    """A template ran too long or built too much."""


class Ticker:
    """Counts loop iterations and macro calls of one rendering, and reads the clock at intervals."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = seconds
        self._deadline = clock() + seconds
        self._count = 0

    def __call__(self) -> str:
        self._count += 1
        if self._count % _TICKS_BETWEEN_LOOKS == 0 and self._clock() > self._deadline:
            raise TemplateBoundError(f"the chat template ran longer than {self._seconds:g} s")
        return ""


class _GenerationTag(Extension):
    """Renders the body of `{% generation %} ... {% endgeneration %}`, a mark of assistant text for training."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Macro) -> str:
        return str(caller())


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Use `compile_template` to make templates; `render_values` gives the names that a rendering needs."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
        self.filters["tojson"] = _to_json
        for name in ("center", "format", "wordwrap"):
            self.filters[name] = _refused_filter(name)
        self.filters["replace"] = _bounded_replace
        self.filters["indent"] = _bounded_indent(self.filters["indent"])
        self.globals["raise_exception"] = _raise_exception
        self.globals[_JOIN] = _join

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _instrument(tree)
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _check_operation(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Is called for str.format and str.format_map, which Jinja replaces by its own. Refuses long widths."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDTH.search(value.__self__):
            raise TemplateBoundError(_PADDED)
        return wrapped

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - Jinja's own signature
        owner = getattr(__obj, "__self__", None)
        method = getattr(__obj, "__name__", "")
        if isinstance(owner, str) and method in _GROWING_METHODS:
            _check_method(owner, args)
        return super().call(__context, __obj, *args, **kwargs)


def bound_values(seconds: float = MAX_SECONDS) -> dict[str, Any]:
    """Returns the names that every rendering needs beside its own."""
    return {_TICK: Ticker(seconds)}


def fixed_time() -> dict[str, Any]:
    """Returns a template's clock function with a fixed time: all renderings of one request show the same time."""
    now = datetime.datetime.now()

    def strftime_now(form: str) -> str:
        return now.strftime(form)

    return {"strftime_now": strftime_now}


def render_bounded(template: jinja2.Template, values: Mapping[str, Any], seconds: float = MAX_SECONDS) -> str:
    """Renders a template. Raises TemplateBoundError past the bounds, and any exception of the template."""
    pieces, size = [], 0
    for piece in template.generate({**values, **bound_values(seconds)}):
        size += len(piece)
        if size > MAX_CHARACTERS:
            raise TemplateBoundError(f"the chat template wrote more than {MAX_CHARACTERS} characters")
        pieces.append(piece)
    return "".join(pieces)


def _instrument(tree: nodes.Template) -> None:
    loops: list[nodes.For | nodes.Macro | nodes.CallBlock] = [*tree.find_all(nodes.For), *tree.find_all(nodes.Macro)]
    loops += tree.find_all(nodes.CallBlock)
    for loop in loops:
        tick = nodes.Call(nodes.Name(_TICK, "load"), [], [], None, None)
        loop.body.insert(0, nodes.ExprStmt(tick, lineno=loop.lineno))
    for parent in list(_all_nodes(tree)):
        for field, value in list(parent.iter_fields()):
            if isinstance(value, nodes.Concat):
                setattr(parent, field, _joined(value))
            elif isinstance(value, list):
                value[:] = [_joined(item) if isinstance(item, nodes.Concat) else item for item in value]


def _all_nodes(node: nodes.Node) -> Any:
    for child in node.iter_child_nodes():
        yield from _all_nodes(child)
    yield node


def _joined(concat: nodes.Concat) -> nodes.Call:
    return nodes.Call(nodes.Name(_JOIN, "load"), concat.nodes, [], None, None, lineno=concat.lineno)


def _join(*parts: Any) -> str:
    texts = [str(part) for part in parts]
    _check_size(sum(map(len, texts)))
    return "".join(texts)


def _check_operation(operator: str, left: Any, right: Any) -> None:
    if operator == "**":
        _check_power(left, right)
    elif operator == "*":
        for repeated, times in ((left, right), (right, left)):
            if isinstance(repeated, str | list | tuple) and isinstance(times, int):
                _check_size(len(repeated) * max(times, 0), MAX_CHARACTERS if isinstance(repeated, str) else MAX_ITEMS)
        if isinstance(left, int) and isinstance(right, int) and abs(left) * abs(right) > _MAX_NUMBER:
            raise TemplateBoundError("the chat template built a number that is too large")
    elif operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        _check_size(len(left) + len(right), MAX_CHARACTERS if isinstance(left, str) else MAX_ITEMS)
    elif operator == "%" and isinstance(left, str) and _WIDTH.search(left):
        raise TemplateBoundError(_PADDED)


def _check_power(base: Any, exponent: Any) -> None:
    are_numbers = isinstance(exponent, int | float) and isinstance(base, int | float)
    if are_numbers and abs(base) <= 1 << 32 and abs(exponent) <= 64:
        return
    raise TemplateBoundError("the chat template built a number that is too large")


def _check_method(text: str, arguments: tuple[Any, ...]) -> None:
    widths = [argument for argument in arguments if isinstance(argument, int)]
    texts = [argument for argument in arguments if isinstance(argument, str)]
    items = [argument for argument in arguments if isinstance(argument, list | tuple | dict)]
    growth = max((len(each) for each in texts), default=0)
    _check_size(max([len(text), *widths]))
    _check_size((len(text) + 1) * (growth + 1))
    for each in items:
        _check_size(sum(len(str(part)) + len(text) for part in each))


def _check_size(size: int, limit: int = MAX_CHARACTERS) -> None:
    if size > limit:
        raise TemplateBoundError(f"the chat template built a value of {size} parts; {limit} is the limit")


def _refused_filter(name: str) -> Callable[..., str]:
    def refuse(*_: Any, **__: Any) -> str:
        raise TemplateBoundError(f"the chat template uses the filter {name!r}, which is not allowed")

    return refuse


def _bounded_indent(indent: Callable[..., str]) -> Callable[..., str]:
    def bounded(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        _check_size((text.count("\n") + 1) * (width if isinstance(width, int) else len(width)) + len(text))
        return indent(text, width, first, blank)

    return bounded


def _bounded_replace(text: Any, old: str, new: str, count: int = -1) -> str:
    _check_size((len(str(text)) + 1) * (len(new) + 1))
    return str(text).replace(old, new, -1 if count is None else count)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Writes JSON as Hugging Face's `tojson` does: no HTML escapes, and non-ASCII text as it is."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
