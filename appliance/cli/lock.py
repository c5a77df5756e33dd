"""`appliance lock`: writes the lock file, or compares the deployment with it."""

from dataclasses import asdict
from json import dumps
from pathlib import Path

from appliance.base.errors import ExitCode
from appliance.cli.arguments.spec import LockArguments
from appliance.cli.spec_target import spec_target
from appliance.deploy.pins.collect import collect_lock
from appliance.deploy.pins.lockfile import differences, lock_path, lock_text, read_lock, told
from appliance.plan.prepare import prepare


def run(arguments: LockArguments) -> int:
    """Returns 0 if the file was written or nothing differs; 2 with `check` if something differs."""
    spec, overrides = spec_target(arguments.spec, arguments.overrides)
    path, as_json = arguments.output or lock_path(Path(spec)), arguments.as_json
    found = collect_lock(prepare(spec, overrides).plan)
    if arguments.check:
        differing = differences(read_lock(path), found)
        print(dumps([asdict(each) for each in differing]) if as_json else "\n".join(map(told, differing)) or "same")
        return int(ExitCode.INVALID if differing else ExitCode.OK)
    path.write_text(lock_text(found), encoding="utf-8")
    print(dumps({"lock": str(path)}) if as_json else f"wrote {path}: {len(found.files)} files")
    return int(ExitCode.OK)
