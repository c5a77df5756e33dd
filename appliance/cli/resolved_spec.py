"""`appliance render --resolved`: the spec as it was understood."""

import json
from collections.abc import Sequence

from appliance.base.errors import ExitCode
from appliance.spec.loader import load_spec
from appliance.spec.resolved import render_resolved, resolved_rows


def run(spec: str, overrides: Sequence[str], *, explain: bool = False, as_json: bool = False) -> int:
    """Reads the spec and what it includes; neither the machine nor the model is asked."""
    loaded = load_spec(spec, overrides)
    if not as_json:
        print(render_resolved(loaded, explain=explain), end="")
    else:
        print(json.dumps(resolved_rows(loaded) if explain else loaded.resolved(), ensure_ascii=False))
    return ExitCode.OK
