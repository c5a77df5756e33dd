"""The verbs about API keys."""

from typing import Annotated

import typer

from appliance.cli.arguments.shared import AsJson
from appliance.cli.verb import group, verb

KeyName = Annotated[str, typer.Argument(metavar="NAME", help="Whose key: small letters, digits and dashes.")]
KeyFilePath = Annotated[str, typer.Option("--file", metavar="FILE", help="What endpoints.auth.keys_file names.")]


def add(app: typer.Typer) -> None:
    keys = group("keys", "API keys: make, list and revoke them. Only their hashes are stored.")
    app.add_typer(keys, name="keys")

    @verb(keys, "new", "appliance keys new alice --file keys.json")
    def new(name: KeyName, file: KeyFilePath = "") -> int:
        """Make a key; print it once, and its hash for the spec."""
        from appliance.cli import keys

        return keys.run_new(name, file or None)

    @verb(keys, "revoke", "appliance keys revoke alice --file keys.json")
    def revoke(name: KeyName, file: KeyFilePath) -> int:
        """Take a key out of a file; running servers refuse it at once."""
        from appliance.cli import keys

        return keys.run_revoke(name, file)

    @verb(keys, "list", "appliance keys list --file keys.json")
    def list_(file: KeyFilePath, as_json: AsJson = False) -> int:
        """Show the names and rules of a file of keys."""
        from appliance.cli import keys

        return keys.run_list(file, as_json)
