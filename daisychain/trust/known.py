"""The nodes this machine knows, in one file: the workers it let in as a head, the heads that let it in as a worker."""

from pathlib import Path

import msgspec

from daisychain.config import write_atomically
from daisychain.errors import TrustError


class KnownWorker(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    forgotten: bool = False
    """Never let back without a new invitation, though its certificate is still well signed."""


class KnownHead(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    address: str
    """Where it was last reached."""
    port: int


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    v: int = 1
    workers: tuple[KnownWorker, ...] = ()
    heads: tuple[KnownHead, ...] = ()


class KnownNodes:
    """The file's content; every change is written at once, whole or not at all.

    One process may change it: the agent.
    """

    def __init__(self, file: Path) -> None:
        """Reads the file, when there is one. Raises TrustError naming it when it is damaged or of a newer version."""
        self._file = file
        self._content = self._read()

    def add(self, node: KnownWorker | KnownHead) -> None:
        """Know a node, or know it anew: the entry with its id is replaced, and it is the last one of its kind."""
        if isinstance(node, KnownWorker):
            others = tuple(worker for worker in self._content.workers if worker.id != node.id)
            self._write(msgspec.structs.replace(self._content, workers=(*others, node)))
        else:
            rest = tuple(head for head in self._content.heads if head.id != node.id)
            self._write(msgspec.structs.replace(self._content, heads=(*rest, node)))

    def add_worker(self, id: str, name: str) -> None:
        """A worker was let in, also one that was forgotten before."""
        self.add(KnownWorker(id=id, name=name))

    def add_head(self, id: str, name: str, address: str, port: int) -> None:
        """A head let this node in, or was reached at this address."""
        self.add(KnownHead(id=id, name=name, address=address, port=port))

    def forget(self, node: str) -> str:
        """Forget the node with this name or id; its id, or an empty string when none is known by it.

        Raises TrustError when more than one has that name.
        """
        ids = {entry.id for entry in self._all() if node in (entry.id, entry.name)}
        if not ids:
            return ""
        if len(ids) > 1:
            raise TrustError(f"{len(ids)} nodes are named {node!r}", f"Give an id: {', '.join(sorted(ids))}")
        (found,) = ids
        workers = tuple(
            msgspec.structs.replace(worker, forgotten=True) if worker.id == found else worker
            for worker in self._content.workers
        )
        heads = tuple(head for head in self._content.heads if head.id != found)
        self._write(msgspec.structs.replace(self._content, workers=workers, heads=heads))
        return found

    def is_known(self, node_id: str) -> bool:
        """Whether a worker or head with this id is known and not forgotten."""
        return any(entry.id == node_id for entry in self._all())

    def was_forgotten(self, node_id: str) -> bool:
        return any(worker.id == node_id and worker.forgotten for worker in self._content.workers)

    def workers(self) -> tuple[KnownWorker, ...]:
        """The workers that may come back, the newest last."""
        return tuple(worker for worker in self._content.workers if not worker.forgotten)

    def heads(self) -> tuple[KnownHead, ...]:
        """The heads this node may go back to, the one added last at the end."""
        return self._content.heads

    def _all(self) -> list[KnownWorker | KnownHead]:
        return [*self.workers(), *self.heads()]

    def _read(self) -> _Content:
        try:
            content = msgspec.json.decode(self._file.read_bytes(), type=_Content)
        except FileNotFoundError:
            return _Content()
        except (OSError, msgspec.DecodeError) as error:
            raise TrustError(
                f"{self._file} is damaged: {error}", "Move it away: nodes then have to be let in again"
            ) from error
        if content.v != 1:
            raise TrustError(
                f"{self._file} is of version {content.v}, this daisychain knows version 1",
                "Install the newer daisychain",
            )
        return content

    def _write(self, content: _Content) -> None:
        try:
            write_atomically(self._file, msgspec.json.format(msgspec.json.encode(content), indent=1), mode=0o600)
        except OSError as error:
            raise TrustError(f"{self._file}: {error.strerror or error}", "Check that the disk isn't full") from error
        self._content = content
