"""The verbs about a plan, a machine and a checkpoint: plan, profile, pull, shard, doctor."""

from typing import Annotated

import typer

from appliance.cli.arguments.machine import (
    DoctorArguments,
    PlanArguments,
    ProfileListArguments,
    PullArguments,
    ShardArguments,
)
from appliance.cli.arguments.shared import AsJson
from appliance.cli.verb import UsageError, group, verb


def add(app: typer.Typer) -> None:
    _add_plan(app)
    _add_profile(app)

    @verb(app, "pull", "appliance pull deployment.yaml", changes_things=True)
    def pull(arguments: PullArguments) -> int:
        """Fetch, check and keep a checkpoint."""
        from appliance.cli import pull

        return pull.run(arguments)

    @verb(app, "shard", "appliance shard deployment.yaml --output model-by-rank", changes_things=True)
    def shard(arguments: ShardArguments) -> int:
        """Write the weights of each rank of a spec, as it loads them."""
        from appliance.cli import shard

        return shard.run(arguments)

    @verb(app, "doctor", "appliance doctor deployment.yaml --bundle support.tar.gz")
    def doctor(arguments: DoctorArguments) -> int:
        """Say what this machine is, which profile fits it and which kernels run here."""
        if arguments.bundle:
            from appliance.cli import bundle as bundling

            return bundling.run(arguments.bundle, arguments.deployment, arguments.as_json)
        if arguments.deployment:
            raise UsageError("a deployment is only for --bundle", hint="`appliance status` says how it is")
        from appliance.cli import doctor

        return doctor.run(measured=arguments.measure, as_json=arguments.as_json)


def _add_plan(app: typer.Typer) -> None:
    @verb(app, "plan", "appliance plan deployment.yaml --hardware nvidia-h100-sxm-80g --explain")
    def plan(arguments: PlanArguments) -> int:
        """Compile a spec into the plan that will run."""
        if bool(arguments.spec) == bool(arguments.from_bundle):
            raise UsageError("give a spec, or --from-bundle")
        if not arguments.from_bundle:
            from appliance.cli import plan

            return plan.run(arguments)
        if arguments.hardware or arguments.model_facts or arguments.verify or arguments.boot_report:
            raise UsageError("a bundle brings its machine and its model", hint="--set changes its spec")
        from appliance.cli import bundle

        return bundle.run_plan(
            arguments.from_bundle, arguments.overrides, as_json=arguments.as_json, explain=arguments.explain
        )


def _add_profile(app: typer.Typer) -> None:
    profile = group("profile", "Hardware profiles: which there are, and which fits.")
    app.add_typer(profile, name="profile")

    @verb(profile, "list", "appliance profile list --explain")
    def list_(arguments: ProfileListArguments) -> int:
        """List the profiles, with the one that fits marked."""
        from appliance.cli import profile

        return profile.run_list(explain=arguments.explain, hardware=arguments.hardware, as_json=arguments.as_json)

    @verb(profile, "show", "appliance profile show cpu-avx2")
    def show(
        name: Annotated[str, typer.Argument(metavar="[NAME]", help="Default: the one of this machine.")] = "",
        as_json: AsJson = False,
    ) -> int:
        """Print one profile."""
        from appliance.cli import profile

        return profile.run_show(name, as_json)
