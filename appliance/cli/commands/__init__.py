"""The table of verbs: the arguments of each, and the module that does its work."""

from typing import Annotated, TypeAlias

import typer

from appliance import __version__
from appliance.cli.commands import bench, exchange, keys, lifecycle, machine, ranks, spec, work
from appliance.cli.verb import group

SUMMARY = "One YAML spec becomes an engine plan, a server, a batch run and a benchmark."


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"appliance {__version__}")
        raise typer.Exit


Version: TypeAlias = Annotated[
    bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version.")
]


def build() -> typer.Typer:
    """Builds the parsers of the whole command line, without importing a verb's module."""
    app = group("appliance", SUMMARY)
    app.callback()(_root)
    for part in (spec, machine, keys, ranks, lifecycle, exchange, work, bench):
        part.add(app)
    return app


def _root(version: Version = False) -> None:
    """Has the options of the command itself."""
