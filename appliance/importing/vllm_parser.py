"""vLLM's engine arguments as those of a program's own command line."""

import argparse
from collections.abc import Iterator
from typing import Final

from appliance.importing.vllm import known_names
from appliance.importing.vllm_fields import SHORT, arity, fields, scalar, switches
from appliance.importing.words import Arity

# What only a server has an argument for: a program may have arguments of its own with these names.
_OF_A_SERVER: Final = ("endpoints.", "restart.", "observability.logs.")
_NAMES_OF_A_SERVER: Final = frozenset({
    "model", "api_key", "lora_modules", "headless", "chat_template", "response_role", "level", "task",
})  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds `--model` and all other engine arguments, with dashes or underscores. None of a value: it was not given."""
    group = parser.add_argument_group("engine arguments", "vLLM's; `appliance explain` says what each does")
    group.add_argument("--model", help="a path, or a repository of the hub")
    for name in sorted(_names()):
        found = fields().get(name)
        about = found.path if found is not None else None
        if name in switches():
            group.add_argument(*_flags(name), action=argparse.BooleanOptionalAction, default=None, help=about)
        elif arity(name) is Arity.MANY:
            group.add_argument(*_flags(name), dest=name, nargs="+", type=scalar, help=about)
        else:
            group.add_argument(*_flags(name), dest=name, type=scalar, help=about)


def _names() -> Iterator[str]:
    for name in known_names():
        found = fields().get(name)
        if name not in _NAMES_OF_A_SERVER and not (found is not None and found.path.startswith(_OF_A_SERVER)):
            yield name


def _flags(name: str) -> list[str]:
    long = f"--{name.replace('_', '-')}"
    short = [flag for flag, meant in SHORT.items() if meant == long]
    return list(dict.fromkeys((*short, long, f"--{name}")))
