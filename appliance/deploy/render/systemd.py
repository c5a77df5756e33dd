"""A systemd unit. The appliance in the foreground, stopped with time to drain, in a sandbox."""

from appliance.deploy.render.workload import ServerWorkload


def render(workload: ServerWorkload) -> dict[str, str]:
    return {f"appliance-{workload.name}.service": _unit(workload)}


def _unit(workload: ServerWorkload) -> str:
    restart = workload.restart
    command = ["/usr/bin/env", "appliance", "apply", "--foreground", str(workload.spec_path)]
    command += ["--timeout", str(workload.start_timeout_s)]
    command += [part for pair in workload.overrides for part in ("--set", pair)]
    sections = {
        "Unit": [
            ("Description", f"Language model deployment {workload.name}"),
            ("Wants", "network-online.target"),
            ("After", "network-online.target"),
            ("StartLimitIntervalSec", str(round(restart.window_s))),
            ("StartLimitBurst", str(restart.max_restarts)),
        ],
        "Service": [
            ("Type", "exec"),
            ("ExecStart", " ".join(_quoted(word) for word in command)),
            ("Restart", "on-failure" if restart.policy == "on-failure" else "no"),
            ("RestartSec", f"{restart.backoff_s:g}"),
            ("KillMode", "mixed"),  # SIGTERM to the server alone: it drains, then ends its engine
            ("TimeoutStopSec", str(workload.stop_s)),
            *_sandbox(workload),
        ],
        "Install": [("WantedBy", "multi-user.target")],
    }
    return "\n".join(
        f"[{name}]\n" + "".join(f"{key}={value}\n" for key, value in rows) for name, rows in sections.items()
    )


def _sandbox(workload: ServerWorkload) -> list[tuple[str, str]]:
    return [
        ("DynamicUser", "yes"),
        ("StateDirectory", "appliance"),
        ("CacheDirectory", "appliance"),
        ("Environment", "APPLIANCE_STATE=%S/appliance APPLIANCE_CACHE=%C/appliance PYTHONUNBUFFERED=1"),
        *([("EnvironmentFile", f"/etc/appliance/{workload.name}.env")] if workload.variables else []),
        *([("MemoryMax", str(workload.memory_bytes))] if workload.memory_bytes else []),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "read-only"),
        ("PrivateTmp", "yes"),
        ("PrivateDevices", "yes"),
        ("ProtectKernelTunables", "yes"),
        ("ProtectControlGroups", "yes"),
        ("RestrictAddressFamilies", "AF_UNIX AF_INET AF_INET6"),
        ("LimitNOFILE", "65536"),
    ]


def _quoted(word: str) -> str:
    """A word of a command line as systemd reads it: `%` and `$` mean themselves."""
    plain = word.replace("%", "%%").replace("$", "$$")
    if plain and not any(sign in plain for sign in " \t\n\"'\\;"):
        return plain
    escaped = plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
