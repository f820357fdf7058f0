"""Identity: one key for good, certificates that mean what they say, garbage refused."""

import datetime
import stat
import sys
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from daisychain.errors import TrustError
from daisychain.trust.identity import Identity, check_self_signed, common_name, id_of, load_certificate, to_pem


def certificate(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, signer: object = None) -> str:
    """A certificate for `key`, signed by `signer` or itself."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "someone")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc))
    builder = builder.not_valid_after(datetime.datetime(2120, 1, 1, tzinfo=datetime.timezone.utc))
    return to_pem(builder.sign(signer or key, hashes.SHA256()))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Identity, Identity]:
    folder = tmp_path_factory.mktemp("identities")
    return Identity.load_or_create(folder / "head", "head"), Identity.load_or_create(folder / "worker", "worker")


def test_is_the_same_when_loaded_again_also_under_another_name(tmp_path: Path) -> None:
    first = Identity.load_or_create(tmp_path / "identity", "old name")
    again = Identity.load_or_create(tmp_path / "identity", "new name")
    assert (again.id, again.certificate_pem) == (first.id, first.certificate_pem)
    assert again.name == "new name"
    assert [file.name for file in (tmp_path / "identity").iterdir()] == ["identity.pem"]


@pytest.mark.skipif(sys.platform == "win32", reason="no such permissions")
def test_key_and_folder_are_their_owners_only_and_stay_so(tmp_path: Path) -> None:
    identity = Identity.load_or_create(tmp_path / "identity", "n")
    identity.key_file.chmod(0o644)
    identity.folder.chmod(0o755)
    Identity.load_or_create(tmp_path / "identity", "n")
    assert stat.S_IMODE(identity.key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(identity.folder.stat().st_mode) == 0o700


def test_the_key_is_not_in_the_repr(pair: tuple[Identity, Identity]) -> None:
    # whole lines of the key: three letters alone turn up in a certificate's base64 by chance
    key = pair[0].key_file.read_text().partition("-----END PRIVATE KEY-----")[0].splitlines()[1:]
    assert len(key) >= 3
    assert not [line for line in key if line in repr(pair[0])]
    assert "_key" not in repr(pair[0]).replace(pair[0].certificate_pem.replace("\n", "\\n"), "")


def test_processes_that_start_at_once_get_one_identity(tmp_path: Path) -> None:
    ids: list[str] = []
    start = threading.Barrier(8)

    def load() -> None:
        start.wait()
        ids.append(Identity.load_or_create(tmp_path / "identity", "n").id)

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 8
    assert len(set(ids)) == 1


@pytest.mark.parametrize("damage", [b"", b"garbage", "half", "no key", "no certificate", "another key"])
def test_a_damaged_file_is_named_with_what_to_try(tmp_path: Path, damage: bytes | str) -> None:
    identity = Identity.load_or_create(tmp_path / "identity", "n")
    pem = identity.key_file.read_bytes()
    split = pem.index(b"-----BEGIN CERT")
    other = Identity.load_or_create(tmp_path / "other", "n").key_file.read_bytes()
    content = {
        "half": pem[: len(pem) // 2],
        "no key": pem[split:],
        "no certificate": pem[:split],
        "another key": other[: other.index(b"-----BEGIN CERT")] + pem[split:],
    }
    identity.key_file.write_bytes(content[damage] if isinstance(damage, str) else damage)
    with pytest.raises(TrustError, match=r"identity\.pem is damaged") as caught:
        Identity.load_or_create(tmp_path / "identity", "n")
    assert "Move it away" in caught.value.remedy


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrustError, match="file"):
        Identity.load_or_create(tmp_path / "file" / "identity", "n")


def test_id_is_the_hash_of_the_certificate_in_either_form(pair: tuple[Identity, Identity]) -> None:
    head, worker = pair
    der = load_certificate(head.certificate_pem).public_bytes(Encoding.DER)
    assert id_of(der) == id_of(head.certificate_pem) == head.id != worker.id
    assert len(head.id) == 64


def test_certificates_are_valid_whatever_the_clock_says(pair: tuple[Identity, Identity]) -> None:
    head, worker = pair
    for pem in (head.certificate_pem, head.sign(worker.certificate_pem)):
        cert = load_certificate(pem)
        assert (cert.not_valid_before_utc.year, cert.not_valid_after_utc.year) == (2020, 2120)


def test_a_signed_leaf_names_the_worker_and_can_only_be_a_client(pair: tuple[Identity, Identity]) -> None:
    head, worker = pair
    leaf = load_certificate(head.sign(worker.certificate_pem))
    assert common_name(leaf) == worker.id
    assert leaf.public_key() == load_certificate(worker.certificate_pem).public_key()
    leaf.verify_directly_issued_by(load_certificate(head.certificate_pem))
    assert leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert leaf.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign is False
    usage = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_a_node_is_an_authority_for_leaves_and_no_more(pair: tuple[Identity, Identity]) -> None:
    constraints = load_certificate(pair[0].certificate_pem).extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)


def test_garbage_is_not_signed(pair: tuple[Identity, Identity]) -> None:
    head, worker = pair
    mine, foreign = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    refused = [
        "",
        "garbage",
        "\ud800",
        worker.certificate_pem[:200],
        worker.certificate_pem + " " * 9000,
        head.sign(worker.certificate_pem),  # a leaf: not self-signed
        certificate(mine, signer=foreign),
        certificate(ec.generate_private_key(ec.SECP384R1())),
        certificate(rsa.generate_private_key(public_exponent=65537, key_size=2048)),
    ]
    for pem in refused:
        with pytest.raises(TrustError):
            head.sign(pem)
    assert check_self_signed(certificate(mine))


def test_membership_is_kept_per_head(tmp_path: Path, pair: tuple[Identity, Identity]) -> None:
    head, other = pair
    worker = Identity.load_or_create(tmp_path, "w")
    assert worker.membership(head.id) is None
    signed = head.sign(worker.certificate_pem)
    worker.keep_membership(head.id, "big", head.certificate_pem, signed)
    found = Identity.load_or_create(tmp_path, "w").membership(head.id)
    assert found is not None
    assert (found.head_name, found.head_certificate, found.signed) == ("big", head.certificate_pem, signed)
    assert worker.membership(other.id) is None
    worker.drop_membership(head.id)
    worker.drop_membership(head.id)
    assert worker.membership(head.id) is None


@pytest.mark.parametrize("head_id", ["", "../identity", "A" * 64, "a" * 63 + "\n", "a" * 65])
def test_an_id_that_is_none_reaches_no_file(pair: tuple[Identity, Identity], head_id: str) -> None:
    assert pair[1].membership(head_id) is None
    pair[1].drop_membership(head_id)
    with pytest.raises(TrustError):
        pair[1].keep_membership(head_id, "h", pair[0].certificate_pem, "")


def test_what_is_not_ours_is_not_kept(tmp_path: Path, pair: tuple[Identity, Identity]) -> None:
    head, other = pair
    worker = Identity.load_or_create(tmp_path, "w")
    for name, signed in {
        "another node's leaf": head.sign(other.certificate_pem),
        "another head's leaf": other.sign(worker.certificate_pem),
        "our own certificate": worker.certificate_pem,
        "garbage": "garbage",
    }.items():
        with pytest.raises(TrustError):
            worker.keep_membership(head.id, name, head.certificate_pem, signed)
    assert worker.membership(head.id) is None


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"head_id": 1}'])
def test_a_damaged_membership_is_named(tmp_path: Path, pair: tuple[Identity, Identity], content: bytes) -> None:
    head = pair[0]
    worker = Identity.load_or_create(tmp_path, "w")
    worker.keep_membership(head.id, "big", head.certificate_pem, head.sign(worker.certificate_pem))
    (file,) = (tmp_path / "heads").iterdir()
    file.write_bytes(content)
    with pytest.raises(TrustError, match=head.id) as caught:
        worker.membership(head.id)
    assert "join that head again" in caught.value.remedy
