"""The certificate of mutual TLS between the services, tried as it is used: a handshake with itself, in memory."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Iterator, Mapping

from services.common import mtls
from services.common.errors import InvalidInput
from services.common.findings import Finding, error, ok, warning
from services.common.settings import from_environment

CHECK = "certificate"
SOON_SECONDS = 14 * 86_400
RENEW = "renew it (cert-manager, or the Secret behind TINKERMESH_TLS_CERT_FILE) and restart the Deployments once"
MOST_TURNS = 20


def certificates(environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Nothing while mutual TLS is off."""
    try:
        settings = from_environment(mtls.Settings, "tls", environ)
        if mtls.identity(environ) is None:
            return
    except InvalidInput as wrong:
        yield error(CHECK, wrong.message, "set all of TINKERMESH_TLS_CERT_FILE, _KEY_FILE and _CA_FILE to PEM files")
        return
    try:
        ends = _handshake(settings)
    except ssl.SSLCertVerificationError as wrong:
        yield error(CHECK, f"{settings.cert_file}: {wrong.verify_message}", _remedy(wrong, settings.server_name))
    except (ssl.SSLError, OSError) as wrong:
        remedy = "certificate and key must belong together: issue both anew"
        yield error(CHECK, f"{settings.cert_file} with {settings.key_file}: {wrong}", remedy)
    else:
        yield _lifetime(CHECK, settings.cert_file, ends)
        yield from _authorities(settings.ca_file)


def _handshake(settings: mtls.Settings) -> str:
    """notAfter of a certificate whose authority, dates, name and key are good. Raises ssl.SSLError, OSError."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(settings.cert_file, settings.key_file)
    client = ssl.create_default_context(cafile=settings.ca_file)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server, server_hostname=settings.server_name)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    done: set[ssl.SSLObject] = set()
    for _ in range(MOST_TURNS):
        for side in (asking, answering):
            if side not in done and _step(side):
                done.add(side)
        if asking in done:
            break
    return str((asking.getpeercert() or {}).get("notAfter", ""))


def _step(side: ssl.SSLObject) -> bool:
    """Whether its half of the handshake is done."""
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _remedy(wrong: ssl.SSLCertVerificationError, name: str) -> str:
    if "expired" in wrong.verify_message:
        return RENEW
    if "match" in wrong.verify_message:
        return f"issue it for the name {name} (tls.serverName, TINKERMESH_TLS_SERVER_NAME)"
    return "certificate and authority must belong together: take ca.crt of the issuer that signed it"


def _authorities(ca_file: str) -> Iterator[Finding]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca_file)
    ends = [str(one["notAfter"]) for one in context.get_ca_certs() if "notAfter" in one]
    if ends:
        yield _lifetime("certificate authority", ca_file, min(ends, key=ssl.cert_time_to_seconds))


def _lifetime(check: str, file: str, ends: str) -> Finding:
    left = ssl.cert_time_to_seconds(ends) - time.time()
    if left <= 0:
        return error(check, f"{file} has ended on {ends}", RENEW)
    text = f"{file} ends on {ends}, in {left / 86_400:.0f} days"
    return warning(check, text, RENEW) if left < SOON_SECONDS else ok(check, text)
