"""Which findings fail a build: a small YAML file."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from appliance.base.errors import ApplianceError, ExitCode
from appliance.deploy.audit.finding import AuditFinding, Gravity


class PolicyError(ApplianceError):
    exit_code = ExitCode.INVALID


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A finding fails when its rule is denied, or when it is at least as grave as `fail_on` and not allowed."""

    fail_on: str = "high"  # low, medium, high
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def failures(self, findings: Sequence[AuditFinding]) -> tuple[AuditFinding, ...]:
        bar = Gravity[self.fail_on.upper()]
        return tuple(
            finding
            for finding in findings
            if finding.rule in self.deny or (finding.gravity >= bar and finding.rule not in self.allow)
        )


def load_policy(path: Path) -> Policy:
    """Raises PolicyError when the file cannot be read or says what a policy has not."""
    try:
        policy = msgspec.yaml.decode(path.read_bytes(), type=Policy)
    except OSError as error:
        raise PolicyError(f"{path}: cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise PolicyError(f"{path}: {error}", hint="a policy has fail_on, allow and deny") from error
    if policy.fail_on.upper() not in Gravity.__members__:
        raise PolicyError(f"{path}: fail_on is {policy.fail_on!r}", hint="low, medium or high")
    return policy
