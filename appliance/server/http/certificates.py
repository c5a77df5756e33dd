"""TLS of the listener: certificates that change while connections are open."""

import os
import ssl
from dataclasses import dataclass

from appliance.base.errors import ApplianceError
from appliance.base.log import fields, logger
from appliance.plan.serving_types import TlsPlan

_log = logger("server")
_VERIFY = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

Signature = tuple[tuple[int, int], ...]  # of each file when it was changed, and its inode


@dataclass(frozen=True, slots=True)
class LoadedCertificates:
    """`context` is as the files were when they had `signature`."""

    plan: TlsPlan
    signature: Signature
    context: ssl.SSLContext


def load_certificates(plan: TlsPlan) -> LoadedCertificates:
    """Raises ApplianceError when a file cannot be read or used."""
    try:
        return _load(plan)
    except (OSError, ssl.SSLError) as error:
        raise ApplianceError(f"endpoints.tls: {error}", hint=f"check {', '.join(_paths(plan))}") from error


class Certificates:
    """Certificates of handshakes; open connections keep theirs.

    `context` is the listener's. Each handshake takes the newest certificates in its place; where the plan says so it
    looks first whether a file has changed. Raises ApplianceError as load_certificates.
    """

    def __init__(self, plan: TlsPlan) -> None:
        self._loaded = load_certificates(plan)
        self.context = load_certificates(plan).context
        self.context.sni_callback = self._choose  # called in every handshake, with or without a name

    def use(self, loaded: LoadedCertificates) -> None:
        """Sets the certificates of handshakes from now on."""
        self._loaded = loaded
        self.context.verify_mode = loaded.context.verify_mode  # this alone a handshake keeps of the listener's

    def _choose(self, connection: ssl.SSLObject, name: str | None, outer: ssl.SSLContext) -> None:
        if self._loaded.plan.refresh:
            self._refresh()
        connection.context = self._loaded.context

    def _refresh(self) -> None:
        plan = self._loaded.plan
        try:
            if _sign(plan) != self._loaded.signature:
                self._loaded = _load(plan)
                _log.info("certificates were read again")
        except (OSError, ssl.SSLError) as error:
            _log.error("certificates cannot be read again; the ones before hold", extra=fields(reason=str(error)))


def _load(plan: TlsPlan) -> LoadedCertificates:
    signature = _sign(plan)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=plan.ca_certs)
    context.verify_mode = _VERIFY[plan.client_certificates]
    context.load_cert_chain(plan.certfile, plan.keyfile)
    return LoadedCertificates(plan, signature, context)


def _paths(plan: TlsPlan) -> list[str]:
    return [path for path in (plan.certfile, plan.keyfile, plan.ca_certs) if path is not None]


def _sign(plan: TlsPlan) -> Signature:
    found = [os.stat(path) for path in _paths(plan)]
    return tuple((status.st_mtime_ns, status.st_ino) for status in found)
