"""Which deployment a command means."""

from pathlib import Path

from appliance.base.environ import state_dir
from appliance.base.errors import ApplianceError, ExitCode
from appliance.deploy.state import CurrentState, DeploymentState, deployment_names
from appliance.spec import load_spec
from appliance.spec.files import SPEC_SUFFIXES


class NoDeploymentError(ApplianceError):
    """A name that nothing was applied by."""

    exit_code = ExitCode.INVALID


def find_deployment(wanted: str) -> DeploymentState:
    """Finds a deployment by its name or its spec, or the only one when `wanted` is empty. Raises ApplianceError."""
    root = state_dir()
    if wanted:
        return DeploymentState(root, load_spec(wanted).spec.name if _is_spec(root, wanted) else _checked(wanted))
    names = deployment_names(root)
    if len(names) == 1:
        return DeploymentState(root, names[0])
    if not names:
        raise ApplianceError("nothing is deployed on this machine", hint="appliance apply deployment.yaml")
    raise ApplianceError("which deployment?", hint=f"name one of {', '.join(names)}")


def running(wanted: str) -> CurrentState:
    """The record of a deployment that was started and not taken down. Raises ApplianceError."""
    state = find_deployment(wanted)
    current = state.current()
    if current is None:
        others = ", ".join(deployment_names(state_dir()))
        raise ApplianceError(
            f"{state.name} does not run", hint="appliance apply starts it" + (f"; deployed: {others}" if others else "")
        )
    return current


def applied_from(name: str) -> tuple[str, list[str]]:
    """The file that a deployment was last applied from, and its overrides. Raises ApplianceError."""
    root = state_dir()
    state = DeploymentState(root, _checked(name))
    current, kept = state.current(), state.generations()
    if not kept:
        known = ", ".join(deployment_names(root)) or "none"
        message = f"cannot read the file {name}: there is none, and nothing of that name was applied here"
        raise NoDeploymentError(message, hint=f"name a YAML file, or a deployment: {known}")
    generation = state.generation(current.generation) if current is not None else kept[-1]
    path = generation.spec_file or (current.spec_file if current is not None else "")
    if not Path(path).is_file():
        hint = f"name its YAML file; what was applied is kept in {generation.folder / 'spec.yaml'}"
        raise NoDeploymentError(f"the spec of {name} is no longer at {path or 'its place'}", hint=hint)
    return path, generation.overrides


def names_deployment(word: str) -> bool:
    """Returns whether a word names a deployment that was applied here, or a spec; otherwise it is a text."""
    root = state_dir()
    if _is_spec(root, word):
        return True
    is_name = bool(word) and "/" not in word and not word.startswith(".")
    return is_name and (word in deployment_names(root) or bool(DeploymentState(root, word).generations()))


def _is_spec(root: Path, wanted: str) -> bool:
    """A deployment of that very name comes before a file without a suffix."""
    is_file = wanted.endswith(SPEC_SUFFIXES) or Path(wanted).is_file()
    return is_file and wanted not in deployment_names(root)


def _checked(name: str) -> str:
    if "/" in name or name.startswith("."):
        raise ApplianceError(f"{name!r} is no deployment's name", hint="a name, or a file that ends with .yaml")
    return name
