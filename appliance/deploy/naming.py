"""Which deployment a command means."""

from pathlib import Path

from appliance.base.environ import state_dir
from appliance.base.errors import ApplianceError
from appliance.deploy.state import CurrentState, DeploymentState, deployment_names
from appliance.spec import load_spec

_SPEC_SUFFIXES = {".yaml", ".yml"}


def find_deployment(wanted: str) -> DeploymentState:
    """Finds a deployment by its name or its spec, or the only one when `wanted` is empty. Raises ApplianceError."""
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


def spec_file(wanted: str) -> str:
    """The file of a spec that is named by its path, or by the deployment that was applied from it.

    What is neither is given back as it is, so that reading it says what is wrong. Raises ApplianceError where a
    deployment's file has gone.
    """
    if Path(wanted).suffix in _SPEC_SUFFIXES or Path(wanted).exists() or wanted not in deployment_names(state_dir()):
        return wanted
    current = DeploymentState(state_dir(), wanted).current()
    if current is None:
        raise ApplianceError(f"{wanted} does not run", hint="name its file: deployment.yaml")
    if not Path(current.spec_file).is_file():
        raise ApplianceError(f"the spec of {wanted} is no longer at {current.spec_file}", hint="name its file")
    return current.spec_file


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
