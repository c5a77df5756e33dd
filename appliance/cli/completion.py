"""`appliance completion`: prints the script by which a shell completes verbs and options."""

from typer.completion import get_completion_script  # type: ignore[attr-defined]  # offered there, not marked so

from appliance.base.environ import COMPLETION_VARIABLE
from appliance.base.errors import ExitCode


def run(shell: str) -> int:
    print(get_completion_script(prog_name="appliance", complete_var=COMPLETION_VARIABLE, shell=shell))
    return ExitCode.OK
