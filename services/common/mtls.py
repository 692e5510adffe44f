"""Mutual TLS between the services: on as soon as TINKERMESH_TLS_CERT_FILE is set, for every server and channel.

All certificates of a mesh come from one authority and bear one name, since pods have no names of their own that last.
A peer whose certificate is missing, expired or of another authority is refused by gRPC during the handshake, which it
logs; one of the same authority without the mesh's name is refused here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import grpc
import msgspec

from services.common.errors import InvalidInput, Unauthenticated
from services.common.settings import from_environment

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]
else:  # grpc's classes are generic in the stubs only
    Context = grpc.aio.ServicerContext

log = logging.getLogger(__name__)

_NAMES = "x509_subject_alternative_name"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """TINKERMESH_TLS_<FIELD>: PEM files, and the name every certificate of this mesh bears."""

    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    server_name: str = "tinkermesh"


class Identity:
    """This process's certificate. Files are read at every use, so that a renewed one is taken up."""

    def __init__(self, settings: Settings) -> None:
        """Raises InvalidInput naming the file that is missing or cannot be read."""
        self._settings = settings
        self._served = self._files()

    @property
    def server_name(self) -> str:
        return self._settings.server_name

    def server_credentials(self) -> grpc.ServerCredentials:
        """Asks every client for a certificate; a renewed one of our own is served from the next handshake on."""
        renewed = cast("Callable[[], grpc.ServerCertificateConfiguration]", self._renewed)  # None = as before
        return grpc.dynamic_ssl_server_credentials(_configuration(*self._served), renewed, True)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For one channel, which keeps them over its reconnections. Raises InvalidInput."""
        certificate, key, authority = self._files()
        return grpc.ssl_channel_credentials(authority, key, certificate)

    @property
    def channel_options(self) -> list[tuple[str, int | str]]:
        return [("grpc.ssl_target_name_override", self.server_name)]

    def admit(self, context: Context) -> None:
        """Raises Unauthenticated when the caller's certificate does not bear the mesh's name."""
        names = [name.decode(errors="replace") for name in context.auth_context().get(_NAMES, ())]
        if self.server_name not in names:
            log.warning(
                "refused a caller at %s: its certificate is for %s, not %s", context.peer(), names, self.server_name
            )
            raise Unauthenticated(f"the certificate does not bear the name {self.server_name} of this mesh's services")

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        try:
            files = self._files()
        except InvalidInput as error:  # being replaced: the one we have is still good
            log.warning("the certificate cannot be read again: %s", error.message)
            return None
        if files == self._served:
            return None
        self._served = files
        log.info("serving a renewed certificate")
        return _configuration(*files)

    def _files(self) -> tuple[bytes, bytes, bytes]:
        settings = self._settings
        return (
            _read("cert_file", settings.cert_file),
            _read("key_file", settings.key_file),
            _read("ca_file", settings.ca_file),
        )


def identity(environ: Mapping[str, str] = os.environ) -> Identity | None:
    """None while mutual TLS is off. Raises InvalidInput when its settings are not whole."""
    settings = from_environment(Settings, "tls", environ)
    named = (settings.cert_file, settings.key_file, settings.ca_file)
    return Identity(settings) if any(named) else None


def _configuration(certificate: bytes, key: bytes, authority: bytes) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)


def _read(field: str, path: str) -> bytes:
    variable = f"TINKERMESH_TLS_{field.upper()}"
    if not path:
        raise InvalidInput(f"{variable} is not set; mutual TLS needs certificate, key and authority")
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InvalidInput(f"{variable}: {path}: {error.strerror}") from error
    if b"-----BEGIN" not in content:
        raise InvalidInput(f"{variable}: {path} is not a PEM file")
    return content
