"""`appliance render`: makes files for other supervisors."""

import json
from pathlib import Path

from appliance.base.errors import ApplianceError, ExitCode
from appliance.cli.arguments.exchange import RenderArguments
from appliance.cli.spec_target import spec_target
from appliance.deploy.render.targets import render_target
from appliance.deploy.render.workload import RenderError, RenderOptions
from appliance.plan.prepare import prepare


def run(arguments: RenderArguments) -> int:
    """Prints the files, or writes them into a folder in which none of them exists yet."""
    path, overrides = spec_target(arguments.spec, arguments.overrides)
    prepared = prepare(path, overrides, arguments.hardware, model_facts=arguments.model_facts, has_key=False)
    files = render_target(arguments.target, prepared, overrides, _options(arguments))
    if arguments.as_json:
        print(json.dumps(files))
    elif arguments.folder is not None:
        _write(files, arguments.folder)
    elif len(files) > 1:
        raise RenderError(f"--to {arguments.target} makes {len(files)} files", hint="give a folder for them: -o DIR")
    else:
        print("\n".join(files.values()), end="")
    return int(ExitCode.OK)


def _options(arguments: RenderArguments) -> RenderOptions:
    return RenderOptions(
        image=arguments.image,
        replicas=arguments.replicas,
        max_replicas=arguments.max_replicas or None,
        prometheus_url=arguments.prometheus,
        start_timeout_s=arguments.timeout_s,
    )


def _write(files: dict[str, str], folder: Path) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise ApplianceError(f"{folder / name} is there already", hint="name another folder") from None
        print(folder / name)
