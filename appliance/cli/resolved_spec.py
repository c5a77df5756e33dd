"""`appliance render --resolved`: prints the spec with every value."""

import json

from appliance.base.errors import ExitCode
from appliance.cli.arguments.exchange import RenderArguments
from appliance.cli.spec_target import spec_target
from appliance.spec.loader import load_spec
from appliance.spec.resolved import render_resolved, resolved_rows


def run(arguments: RenderArguments) -> int:
    """Reads the spec and its includes; it needs neither the machine nor the model."""
    loaded = load_spec(*spec_target(arguments.spec, arguments.overrides))
    if not arguments.as_json:
        print(render_resolved(loaded, explain=arguments.explain), end="")
    else:
        print(json.dumps(resolved_rows(loaded) if arguments.explain else loaded.resolved(), ensure_ascii=False))
    return ExitCode.OK
