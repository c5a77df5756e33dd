"""The verbs about a plan, a machine and a checkpoint: plan, profile, pull, doctor."""

from typing import Annotated

import typer

from appliance.cli.commands.options import AsJson, Overrides, spec_file
from appliance.cli.commands.verb import UsageError, group, verb

Hardware = Annotated[
    str, typer.Option("--hardware", metavar="NAME|FILE", help="Another machine's facts; default: this machine.")
]


def add(app: typer.Typer) -> None:
    _add_plan(app)
    _add_profile(app)
    _add_pull(app)

    @verb(app, "doctor", "appliance doctor deployment.yaml --bundle support.tar.gz")
    def doctor(
        deployment: Annotated[
            str, typer.Argument(metavar="[SPEC|NAME]", help="For --bundle; default: the only one.", show_default=False)
        ] = "",
        bundle: Annotated[
            str, typer.Option(metavar="FILE", help="Write a support bundle, without secrets and prompts.")
        ] = "",
        measure: Annotated[bool, typer.Option("--measure", help="Measure bandwidth and peaks (about 10 s).")] = False,
        as_json: AsJson = False,
    ) -> int:
        """Say what this machine is, which profile fits it and which kernels run here."""
        if bundle:
            from appliance.cli import bundle as bundling

            return bundling.run(bundle, deployment, as_json)
        if deployment:
            raise UsageError("a deployment is only for --bundle", hint="`appliance status` says how it is")
        from appliance.cli import doctor

        return doctor.run(measured=measure, as_json=as_json)


def _add_plan(app: typer.Typer) -> None:
    @verb(app, "plan", "appliance plan deployment.yaml --hardware nvidia-h100-sxm-80g --explain")
    def plan(
        spec: Annotated[
            str,
            typer.Argument(
                metavar="[SPEC]",
                help="A deployment's YAML file, or its name once applied.",
                parser=spec_file,
                show_default=False,
            ),
        ] = "",
        overrides: Overrides = None,
        hardware: Hardware = "",
        as_json: AsJson = False,
        explain: Annotated[bool, typer.Option("--explain", help="Say why each value is what it is.")] = False,
        advise: Annotated[bool, typer.Option("--advise", help="Say what would be faster or hold more here.")] = False,
        model_facts: Annotated[
            str, typer.Option(metavar="FILE", help="ModelFacts as JSON, in place of the checkpoint.")
        ] = "",
        verify: Annotated[bool, typer.Option("--verify", help="Compare with what the deployment measured.")] = False,
        boot_report: Annotated[str, typer.Option(metavar="FILE", help="For --verify: another boot report.")] = "",
        from_bundle: Annotated[
            str, typer.Option(metavar="FILE", help="In place of a spec: plan what a support bundle holds, and compare.")
        ] = "",
    ) -> int:
        """Compile a spec into the plan that will run."""
        if bool(spec) == bool(from_bundle):
            raise UsageError("give a spec, or --from-bundle")
        if from_bundle and (hardware or model_facts or verify or boot_report):
            raise UsageError("a bundle brings its machine and its model", hint="--set changes its spec")
        if from_bundle:
            from appliance.cli import bundle

            return bundle.run_plan(from_bundle, overrides or [], as_json=as_json, explain=explain)
        from appliance.cli import plan

        wanted = boot_report if verify or boot_report else None
        return plan.run(spec, overrides or [], hardware or None, as_json, explain, model_facts or None, wanted, advise)


def _add_profile(app: typer.Typer) -> None:
    profile = group("profile", "Hardware profiles: which there are, and which fits.")
    app.add_typer(profile, name="profile")

    @verb(profile, "list", "appliance profile list --explain")
    def list_(
        explain: Annotated[bool, typer.Option("--explain", help="Say which condition held or failed.")] = False,
        hardware: Hardware = "",
        as_json: AsJson = False,
    ) -> int:
        """List the profiles, with the one that fits marked."""
        from appliance.cli import profile

        return profile.run_list(explain=explain, hardware=hardware, as_json=as_json)

    @verb(profile, "show", "appliance profile show cpu-avx2")
    def show(
        name: Annotated[str, typer.Argument(metavar="[NAME]", help="Default: the one of this machine.")] = "",
        as_json: AsJson = False,
    ) -> int:
        """Print one profile."""
        from appliance.cli import profile

        return profile.run_show(name, as_json)


def _add_pull(app: typer.Typer) -> None:
    @verb(app, "pull", "appliance pull deployment.yaml", changes_things=True)
    def pull(
        target: Annotated[str, typer.Argument(metavar="SPEC|SOURCE", help="A spec, or hf://..., a path, a hub id.")],
        mirrors: Annotated[
            list[str] | None, typer.Option("--mirror", metavar="SOURCE", help="Another place; repeatable.")
        ] = None,
        sha256: Annotated[str, typer.Option(metavar="HEX", help="The digest the file must have.")] = "",
        revision: Annotated[str, typer.Option(help="A branch, tag or commit of the hub.")] = "",
        offline: Annotated[bool, typer.Option("--offline", help="Use only what is on this machine.")] = False,
        overrides: Overrides = None,
        as_json: AsJson = False,
    ) -> int:
        """Fetch, check and keep a checkpoint."""
        from appliance.cli import pull

        return pull.run(
            target,
            mirrors=mirrors or [],
            sha256=sha256 or None,
            revision=revision or None,
            offline=offline,
            overrides=overrides or [],
            as_json=as_json,
        )
