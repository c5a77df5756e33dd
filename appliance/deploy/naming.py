"""Which deployment a command means."""

from pathlib import Path

from appliance.base.environ import state_dir
from appliance.base.errors import ApplianceError
from appliance.deploy.state import CurrentState, DeploymentState, deployment_names
from appliance.spec import load_spec

_SPEC_SUFFIXES = {".yaml", ".yml"}


def find_deployment(wanted: str) -> DeploymentState:
    """By name, by the spec that names it, or the only one there is when `wanted` is empty. Raises ApplianceError."""
    root = state_dir()
    if wanted:
        is_file = Path(wanted).suffix in _SPEC_SUFFIXES
        return DeploymentState(root, load_spec(wanted).spec.name if is_file else _checked(wanted))
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
        raise ApplianceError(f"{state.name} does not run", hint="appliance apply starts it")
    return current


def _checked(name: str) -> str:
    if "/" in name or name.startswith("."):
        raise ApplianceError(f"{name!r} is no deployment's name", hint="a name, or a file that ends with .yaml")
    return name
