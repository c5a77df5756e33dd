"""`appliance render`: files for other supervisors."""

import json
from collections.abc import Sequence
from pathlib import Path

from appliance.base.errors import ApplianceError, ExitCode
from appliance.deploy.render.targets import render_target
from appliance.deploy.render.workload import RenderError, RenderOptions
from appliance.plan.prepare import prepare


def run(
    spec: str,
    target: str,
    overrides: Sequence[str],
    options: RenderOptions,
    *,
    hardware: str | None = None,
    model_facts: str | None = None,
    folder: str | None = None,
    as_json: bool = False,
) -> int:
    """Prints the files, or writes them into `folder`, where none may be there already."""
    facts = Path(model_facts) if model_facts else None
    prepared = prepare(spec, overrides, hardware, model_facts=facts)
    files = render_target(target, prepared, overrides, options)
    if as_json:
        print(json.dumps(files))
    elif folder is None and len(files) > 1:
        raise RenderError(f"--to {target} makes {len(files)} files", hint="give a folder for them: -o DIR")
    elif folder is None:
        print("\n".join(files.values()), end="")
    else:
        _write(files, Path(folder))
    return int(ExitCode.OK)


def _write(files: dict[str, str], folder: Path) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise ApplianceError(f"{folder / name} is there already", hint="name another folder") from None
        print(folder / name)
