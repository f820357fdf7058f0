"""Who this node is: one key, one self-signed certificate, and what heads signed for it.

The certificate's fingerprint is the node's id. As a certificate authority it signs one leaf for each
worker that this node, as a head, lets in; nothing else is ever trusted because of it.
"""

import contextlib
import datetime
import hashlib
import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from daisychain.config import write_atomically
from daisychain.errors import TrustError

MAX_CERTIFICATE_BYTES = 8 * 1024
# fixed dates, because the clocks of old machines are wrong by years; tls.py doesn't compare them with the clock either
NOT_BEFORE = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
NOT_AFTER = datetime.datetime(2120, 1, 1, tzinfo=datetime.timezone.utc)

_HEX_64 = re.compile(r"[0-9a-f]{64}")
_UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.InvalidVersion)
_NEW_IDENTITY = "Move it away: this node then gets a new identity and has to join again"


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """What one head gave this node when it let it in."""

    head_id: str
    head_name: str
    head_certificate: str
    """PEM; the only certificate this node accepts from that head."""
    signed: str
    """PEM; this node's key, signed by the head."""


@dataclass(frozen=True)
class Identity:
    """This node's key and certificate, read from `folder`."""

    folder: Path
    name: str
    """For people; it isn't in the certificate, so renaming a node doesn't change who it is."""
    id: str
    """SHA-256 of the certificate's DER, 64 hex digits."""
    certificate_pem: str
    _key: ec.EllipticCurvePrivateKey = field(repr=False, compare=False)

    @staticmethod
    def load_or_create(folder: Path, name: str) -> "Identity":
        """The identity in `folder`, made first when there is none; two processes at once get the same one.

        Raises TrustError naming the file when it is damaged or can't be read or written.
        """
        file = folder / "identity.pem"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.chmod(0o700)
            if not file.exists():
                _create(file)
            file.chmod(0o600)
            pem = file.read_bytes()
        except OSError as error:
            why = error.strerror or error
            raise TrustError(f"{file}: {why}", "Check who owns this folder and that the disk isn't full") from error
        key, certificate = _parse(file, pem)
        return Identity(folder, name, fingerprint(certificate), to_pem(certificate), key)

    @property
    def key_file(self) -> Path:
        """PEM file with the private key and then the self-signed certificate, readable by its owner only."""
        return self.folder / "identity.pem"

    def sign(self, worker_certificate_pem: str) -> str:
        """A certificate, PEM, for the key of a worker's self-signed certificate; its common name is the worker's id.

        It lets the worker in as a client. It can't sign others, and nobody accepts it from a server, so that a worker
        can't pose as the head. Raises TrustError when the given certificate isn't a worker's.
        """
        worker = check_self_signed(worker_certificate_pem)
        own = check_self_signed(self.certificate_pem)
        builder = _builder(fingerprint(worker), own.subject, _public_key(worker))
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(sign_certificates=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=True)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
        )
        return to_pem(builder.sign(self._key, hashes.SHA256()))

    def check_signed(self, head_certificate_pem: str, signed_pem: str) -> None:
        """Raises TrustError unless `signed_pem` is this node's key and id, signed by that head."""
        head, signed = check_self_signed(head_certificate_pem), load_certificate(signed_pem)
        mine = _public_key(signed) == self._key.public_key() and common_name(signed) == self.id
        if not mine or not _is_issued_by(signed, head):
            raise TrustError("the head signed something else than this node's certificate", "Join again")

    def membership(self, head_id: str) -> Membership | None:
        """What that head gave this node; None when it never let it in.

        Raises TrustError naming the file when it is damaged.
        """
        if not is_id(head_id):
            return None
        file = self._membership_file(head_id)
        try:
            found = msgspec.json.decode(file.read_bytes(), type=Membership)
            self.check_signed(found.head_certificate, found.signed)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, TrustError) as error:
            raise TrustError(f"{file} is damaged: {error}", "Move it away and join that head again") from error
        return found

    def keep_membership(self, head_id: str, head_name: str, head_certificate_pem: str, signed_pem: str) -> None:
        """Remember what a head gave this node.

        Raises TrustError when the certificates don't belong to that head and this node, or can't be written.
        """
        if id_of(head_certificate_pem) != head_id:
            raise TrustError(f"the certificate of {head_name} isn't the one of its id", "Join it again")
        self.check_signed(head_certificate_pem, signed_pem)
        kept = Membership(
            head_id=head_id, head_name=head_name, head_certificate=head_certificate_pem, signed=signed_pem
        )
        file = self._membership_file(head_id)
        try:
            write_atomically(file, msgspec.json.encode(kept), mode=0o600)
        except OSError as error:
            raise TrustError(f"{file}: {error.strerror or error}", "Check that the disk isn't full") from error

    def drop_membership(self, head_id: str) -> None:
        """Forget what a head gave this node; nothing happens when there is nothing."""
        if is_id(head_id):
            with contextlib.suppress(OSError):
                self._membership_file(head_id).unlink(missing_ok=True)

    def _membership_file(self, head_id: str) -> Path:
        return self.folder / "heads" / f"{head_id}.json"


def is_id(text: str) -> bool:
    """Whether `text` has the form of a node's id: 64 lower-case hex digits."""
    return _HEX_64.fullmatch(text) is not None


def id_of(certificate: str | bytes) -> str:
    """The id of the node with this certificate (PEM text or DER bytes). Raises TrustError when it isn't one."""
    if isinstance(certificate, bytes):
        return hashlib.sha256(certificate).hexdigest()
    return fingerprint(load_certificate(certificate))


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of the certificate's DER, hex."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def common_name(certificate: x509.Certificate) -> str:
    """The subject's only common name; empty when there is none or more than one."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def to_pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def load_certificate(pem: str) -> x509.Certificate:
    """The certificate in PEM text of at most 8 KiB. Raises TrustError."""
    if len(pem) > MAX_CERTIFICATE_BYTES:
        raise TrustError(f"the certificate has more than {MAX_CERTIFICATE_BYTES} bytes", "Is this daisychain?")
    try:
        return x509.load_pem_x509_certificate(pem.encode())
    except _UNREADABLE as error:
        raise TrustError("the certificate can't be read", "Is the other side daisychain, of this version?") from error


def check_self_signed(pem: str) -> x509.Certificate:
    """The certificate, when it is signed with its own P-256 key. Raises TrustError."""
    certificate = load_certificate(pem)
    _public_key(certificate)
    if not _is_issued_by(certificate, certificate):
        raise TrustError("the certificate isn't signed by its own key", "Is the other side daisychain?")
    return certificate


def _public_key(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    try:
        key = certificate.public_key()
    except _UNREADABLE as error:
        raise TrustError("the certificate's key can't be read", "Is the other side daisychain?") from error
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    raise TrustError("the certificate has no P-256 key", "Is the other side daisychain, of this version?")


def _is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, *_UNREADABLE):
        return False
    return True


def _builder(subject: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    """What all our certificates have in common."""
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOT_BEFORE)
        .not_valid_after(NOT_AFTER)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _key_usage(sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=sign_certificates, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, crl_sign=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _create(file: Path) -> None:
    """Write a new key and its certificate in one file, unless another process was faster."""
    key = ec.generate_private_key(ec.SECP256R1())
    # a subject of its own for every node: a certificate names its issuer by it
    common = f"daisychain {secrets.token_hex(16)}"
    builder = _builder(common, _name(common), key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(sign_certificates=True), critical=True)
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    fresh = file.with_name(f"new-{secrets.token_hex(8)}.pem")
    write_atomically(fresh, key_pem + to_pem(builder.sign(key, hashes.SHA256())).encode(), mode=0o600)
    try:
        # a link fails where a rename would replace the identity of a process that was faster
        os.link(fresh, file)
    except FileExistsError:
        pass
    except OSError:
        fresh.replace(file)  # a file system without hard links
    finally:
        fresh.unlink(missing_ok=True)


def _parse(file: Path, pem: bytes) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
        certificate = x509.load_pem_x509_certificate(pem)
    except _UNREADABLE as error:
        raise TrustError(f"{file} is damaged: no key and certificate in it", _NEW_IDENTITY) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise TrustError(f"{file} is damaged: its key and certificate don't belong together", _NEW_IDENTITY)
    return key, certificate
