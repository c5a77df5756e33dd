"""`appliance doctor --bundle` writes a support bundle of a deployment; `plan --from-bundle` reads it."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from appliance.base.environ import state_dir
from appliance.base.errors import ExitCode
from appliance.deploy.bundle.archive import write_archive
from appliance.deploy.bundle.collect import BundleSource, collect_bundle
from appliance.deploy.bundle.contents import MANIFEST, Manifest
from appliance.deploy.bundle.replay import Replayed, replay
from appliance.deploy.naming import running
from appliance.deploy.reconcile import shown
from appliance.deploy.state import DeploymentState, deployment_names
from appliance.plan.render import render_json, render_text
from appliance.spec.compose import written_text


def run(file: str, target: str, as_json: bool = False) -> int:
    """Writes the bundle. target: a spec, a deployment, or "" for the only running deployment, if there is one."""
    members = collect_bundle(_wanted(target))
    write_archive(Path(file), members)
    manifest = msgspec.json.decode(members[MANIFEST], type=Manifest)
    if as_json:
        print(members[MANIFEST])
        return ExitCode.OK
    print(f"{file}: {', '.join(members)}")
    if manifest.masked:
        print(f"masked: {', '.join(manifest.masked)}")
    for part, reason in manifest.missing.items():
        print(f"without {part}: {reason}")
    return ExitCode.OK


def _wanted(target: str) -> BundleSource | None:
    if Path(target).suffix in (".yaml", ".yml"):
        return BundleSource(text=written_text(Path(target)), file=target)
    if not target and len(deployment_names(state_dir())) != 1:
        return None
    current = running(target)
    generation = DeploymentState(state_dir(), current.name).generation(current.generation)
    return BundleSource(text=generation.spec_text, file=current.spec_file, overrides=generation.overrides)


def run_plan(file: str, overrides: Sequence[str], *, as_json: bool = False, explain: bool = False) -> int:
    """Prints the plan that a bundle gives here, and how it differs from its own. Returns 2 if it differs."""
    made = replay(Path(file), overrides)
    print(render_json(made.plan) if as_json else _as_text(made, explain))
    return ExitCode.OK if made.is_same else ExitCode.INVALID


def _as_text(made: Replayed, explain: bool) -> str:
    by = f"of appliance {made.manifest.appliance} on {made.manifest.platform}"
    lines = [render_text(made.plan, explain=explain), ""]
    if made.is_same:
        lines.append(f"the same plan as in the bundle, {by}")
    else:
        lines.append(f"not the plan of the bundle, {by}:")
        lines += [f"  {each.path}: {shown(each.old)} then, {shown(each.new)} here" for each in made.changes]
    if made.manifest.masked:
        lines.append(f"masked in the bundle: {', '.join(made.manifest.masked)}")
    return "\n".join(lines)
