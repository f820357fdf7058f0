"""TLS contexts of the control channel, and who is on the other end of a connection.

A head shows its self-signed certificate. A worker that joined shows the leaf that this head signed; the TUI and the
CLI show the node's own certificate; a stranger shows none and may only knock (invites.py, pairing.py).
"""

import ssl
import tempfile
from pathlib import Path
from typing import Literal

import msgspec
from cryptography import x509

from daisychain.errors import LinkError, TrustError
from daisychain.trust.identity import Identity, common_name, id_of, is_id

# X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which the ssl module has no name for: a dead clock must not end a membership,
# and one is revoked by forgetting the node, never by a date
_NO_CHECK_TIME = 0x200000


class PeerId(msgspec.Struct, frozen=True, kw_only=True):
    """Who a client is, as far as TLS proved it."""

    kind: Literal["local", "worker", "stranger"]
    """local: holds this node's own key. worker: holds a key that this node signed. stranger: showed nothing."""
    id: str = ""
    """The node's id; empty for a stranger."""


def server_context(identity: Identity) -> ssl.SSLContext:
    """For listening: a client shows nothing, our own certificate or a leaf signed by it; with anything else it fails.

    The client of a failed handshake learns of it when it first reads. Raises TrustError.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.num_tickets = 0  # connections last; a resumed session would outlive what the peer was told
    _trust(context, identity.certificate_pem)
    _present(context, identity)
    return context


def client_context(
    identity: Identity, head_certificate_pem: str | None = None, signed_pem: str | None = None
) -> ssl.SSLContext:
    """For dialling, in one of three ways. Raises TrustError when a certificate is unusable.

    - neither given, a stranger: nothing is verified; the caller looks at `server_id` before it trusts anything;
    - both given, a worker that joined: only that head's certificate will do, and the leaf is shown;
    - both our own certificate, a local client of this node's agent.
    """
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # a node is its certificate; addresses and names change
    if head_certificate_pem is None:
        context.verify_mode = ssl.CERT_NONE
        return context
    context.verify_mode = ssl.CERT_REQUIRED
    _trust(context, head_certificate_pem)
    if signed_pem is not None:
        _present(context, identity, signed_pem)
    return context


def peer_id(tls: ssl.SSLObject | ssl.SSLSocket, identity: Identity) -> PeerId:
    """Who a client of our server is."""
    der = tls.getpeercert(binary_form=True)
    if not der:
        return PeerId(kind="stranger")
    # the handshake has verified the signature; what is left is to read it
    if id_of(der) == identity.id:
        return PeerId(kind="local", id=identity.id)
    worker = common_name(x509.load_der_x509_certificate(der))
    return PeerId(kind="worker", id=worker) if is_id(worker) else PeerId(kind="stranger")


def server_id(tls: ssl.SSLObject | ssl.SSLSocket) -> str:
    """The id of the server that a client is connected to: it holds the key of that certificate."""
    return id_of(_server_der(tls))


def server_certificate(tls: ssl.SSLObject | ssl.SSLSocket) -> str:
    """The PEM certificate of the server that a client is connected to."""
    return ssl.DER_cert_to_PEM_cert(_server_der(tls))


def _server_der(tls: ssl.SSLObject | ssl.SSLSocket) -> bytes:
    der = tls.getpeercert(binary_form=True)
    if not der:
        raise LinkError("the server showed no certificate", "Is daisychain running there?")
    return der


def _context(protocol: ssl._SSLMethod) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VerifyFlags(_NO_CHECK_TIME)
    return context


def _trust(context: ssl.SSLContext, pem: str) -> None:
    try:
        context.load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError, TypeError) as error:  # TypeError: not ASCII
        raise TrustError("the head's certificate can't be read", "Join that head again") from error


def _present(context: ssl.SSLContext, identity: Identity, pem: str | None = None) -> None:
    """Show `pem`, or our own certificate, and prove it with our key. The ssl module reads them from files only."""
    try:
        if pem is None:
            context.load_cert_chain(identity.key_file)
            return
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "certificate.pem")
            file.write_text(pem, encoding="utf-8")
            context.load_cert_chain(file, identity.key_file)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise TrustError(
            f"the certificate of this node and {identity.key_file} don't belong together: {error}", "Join again"
        ) from error
