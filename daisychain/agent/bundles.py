"""Files of a run: what a script's folder ships, content-addressed storage, laying them out.

All of it blocks: call it in a thread.
"""

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from daisychain.errors import DaisyError, DataError, PreflightError
from daisychain.facts import Verdict
from daisychain.link.messages import File

ALWAYS_IGNORED = (
    ".*", "__pycache__", "node_modules", "venv", "*.egg-info", "*.pyc", "build", "dist",
)  # fmt: skip
KEPT_BLOBS_BYTES = 2 * 1024**3
SPARE_DISK_BYTES = 64 * 1024**2


class Rule:
    """One line of a .gitignore, as its manual page says: with a slash inside it is anchored, `!` takes back, a final
    `/` means folders only."""

    def __init__(self, line: str, base: str = "") -> None:
        self.negated = line.startswith("!")
        body = line[1:] if self.negated else line
        body = body.removeprefix("\\")
        self.folders_only = body.endswith("/")
        body = body.rstrip("/")
        anchored = "/" in body
        pattern = _regex(body.lstrip("/"))
        start = re.escape(f"{base}/") if base else ""
        try:
            self._match = re.compile(f"{start}{pattern if anchored else f'(?:.*/)?{pattern}'}$")
        except re.error:
            self._match = re.compile(r"(?!)")  # a malformed range such as [z-a] matches nothing, as in git

    def matches(self, path: str, is_folder: bool) -> bool:
        return (is_folder or not self.folders_only) and self._match.match(path) is not None


def _regex(glob: str) -> str:
    pieces = []
    for part in re.split(r"(\*\*/|/\*\*$|\*|\?|\[[^]]*\])", glob):
        match part:
            case "**/":
                pieces.append("(?:.*/)?")
            case "/**":
                pieces.append("/.*")
            case "*":
                pieces.append("[^/]*")
            case "?":
                pieces.append("[^/]")
            case _ if part.startswith("[") and part.endswith("]"):
                pieces.append(part.replace("[!", "[^", 1))
            case _:
                pieces.append(re.escape(part))
    return "".join(pieces)


def rules_of(text: str, base: str = "") -> list[Rule]:
    """The rules of a .gitignore's text that lies in folder `base` (relative, '' for the top)."""
    lines = (line.rstrip() for line in text.splitlines())
    return [Rule(line, base) for line in lines if line and not line.startswith("#")]


def ignored(path: str, is_folder: bool, rules: Iterable[Rule]) -> bool:
    """The last rule that matches decides."""
    verdict = False
    for rule in rules:
        if rule.matches(path, is_folder):
            verdict = not rule.negated
    return verdict


def walk(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file that is shipped with a script in `folder`: (relative path with slashes, path).

    Links are followed to files only.
    """
    yield from _walk(folder, "", [Rule(pattern) for pattern in ALWAYS_IGNORED])


def _walk(folder: Path, base: str, rules: list[Rule]) -> Iterator[tuple[str, Path]]:
    with suppress(OSError, UnicodeDecodeError):
        rules = rules + rules_of((folder / ".gitignore").read_text(encoding="utf-8"), base)
    for entry in sorted(os.scandir(folder), key=lambda e: e.name):
        path = f"{base}/{entry.name}" if base else entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        if ignored(path, is_folder, rules):
            continue
        if is_folder:
            yield from _walk(Path(entry.path), path, rules)
        elif entry.is_file():
            yield path, Path(entry.path)


def bundle(folder: Path, limit_bytes: int) -> dict[str, Path]:
    """The files of a script's folder by relative path. Raises DataError when they are more than `limit_bytes`."""
    files: dict[str, Path] = {}
    total = 0
    largest = (0, "")
    for name, path in walk(folder):
        size = path.stat().st_size
        total += size
        largest = max(largest, (size, name))
        files[name] = path
        if total > limit_bytes:
            raise DataError(
                f"{folder} has more than {limit_bytes / 1e6:.0f} MB to ship; its largest file so far is {largest[1]} "
                f"({largest[0] / 1e6:.1f} MB)",
                "Name data with --data, put what is not needed into .gitignore, or move the script into its own folder",
            )
    return files


def named_data(paths: Iterable[str], script_folder: Path | None) -> dict[str, Path]:
    """Files and folders given with --data, by the relative path they get in the work folder: their own below the
    script's folder, else their name. Raises DataError for one that isn't there."""
    files: dict[str, Path] = {}
    for text in paths:
        path = Path(text)
        if not path.exists():
            raise DataError(f"{path}: no such file or folder", "Check the path after --data")
        inside = script_folder is not None and path.is_relative_to(script_folder)
        name = path.relative_to(script_folder).as_posix() if inside and script_folder else path.name
        if path.is_dir():
            # named is meant: what a .gitignore in it leaves out of a repository is shipped all the same
            below = (file for file in sorted(path.rglob("*")) if file.is_file())
            files |= {f"{name}/{file.relative_to(path).as_posix()}": file for file in below}
        else:
            files[name] = path
    return files


def describe(files: dict[str, Path]) -> tuple[File, ...]:
    """Every file with its hash and size."""
    return tuple(File(name, _hash(path), path.stat().st_size) for name, path in sorted(files.items()))


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


class BlobStore:
    """Content-addressed files below one folder; a partly fetched one is NAME.part and is gone on with."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, sha256: str) -> Path:
        if not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise DataError(f"{sha256[:80]!r} is not a SHA-256", "The head sent a wrong file list")
        return self._folder / sha256

    def has(self, file: File) -> bool:
        path = self.path(file.sha256)
        return path.is_file() and path.stat().st_size == file.size

    def offset(self, file: File) -> int:
        """How many bytes of it are there already."""
        part = self.path(file.sha256).with_suffix(".part")
        return min(part.stat().st_size, file.size) if part.exists() else 0

    def append(self, file: File, piece: bytes) -> None:
        with self.path(file.sha256).with_suffix(".part").open("ab") as stream:
            stream.write(piece)

    def accept(self, file: File) -> None:
        """The part is whole: check it and keep it. Raises DataError, and drops the part, when its hash is another."""
        part = self.path(file.sha256).with_suffix(".part")
        if file.size == 0:
            part.touch()
        if _hash(part) != file.sha256:
            part.unlink()
            raise DataError(f"{file.path} arrived damaged", "Launch the run again")
        part.replace(self.path(file.sha256))

    def make_room(self, needed_bytes: int, keep: Iterable[str] = ()) -> None:
        """Drop the oldest blobs beyond the limit, but none whose hash is in `keep`; raise DaisyError when the disk is
        too full for `needed_bytes`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        kept = set(keep)
        blobs = sorted((p for p in self._folder.iterdir() if p.is_file()), key=lambda p: p.stat().st_mtime)
        excess = sum(p.stat().st_size for p in blobs) + needed_bytes - KEPT_BLOBS_BYTES
        for blob in blobs:
            if excess <= 0:
                break
            if blob.stem in kept:
                continue
            excess -= blob.stat().st_size
            blob.unlink(missing_ok=True)
        free = shutil.disk_usage(self._folder).free
        if free < 2 * needed_bytes + (SPARE_DISK_BYTES if needed_bytes else 0):
            raise disk_full(self._folder, needed_bytes, free)


def disk_full(folder: Path, needed_bytes: int, free_bytes: int) -> DaisyError:
    return _refusal(
        f"the disk is full: the run's files need {2 * needed_bytes / 1e6:.1f} MB in {folder}, "
        f"{free_bytes / 1e6:.1f} MB are free",
        "Free some space there, or leave this node out with --nodes",
    )


def explain(error: OSError, folder: Path) -> DaisyError:
    """An OSError while files were laid out, for people."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _refusal(f"the disk is full while writing to {folder}", "Free some space there, or leave this node out")
    return _refusal(f"can't write to {folder}: {error.strerror or error}", "Check its permissions")


def _refusal(reason: str, remedy: str) -> PreflightError:
    """As what is found before a run starts; whoever asked the node fills in its name (seats.named)."""
    return PreflightError([Verdict(level="refuse", check="disk", reason=reason, remedy=remedy)])


def lay_out(files: Iterable[tuple[File, Path]], folder: Path, kept: Path | None = None) -> None:
    """Put each file's source below a new `folder`. A copy, so that a script that writes can't spoil the source.

    kept: the folder of a BlobStore, from which a source that isn't what it was is dropped.
    Raises DataError for a path that would leave the folder, and for content that isn't the file's.
    """
    for file, source in files:
        name = file.path
        target = folder / name
        if not target.resolve().is_relative_to(folder.resolve()) or "\\" in name:
            raise DataError(f"{name!r} leads out of the run's folder", "The head sent a wrong file list")
        target.parent.mkdir(parents=True, exist_ok=True)
        if _copy(source, target) != file.sha256:
            raise _other_content(file, source, kept)


def _copy(source: Path, target: Path) -> str:
    """Copy a file; the SHA-256 of what was copied."""
    digest = hashlib.sha256()
    with source.open("rb") as reading, target.open("wb") as writing:
        while piece := reading.read(1 << 20):
            digest.update(piece)
            writing.write(piece)
    return digest.hexdigest()


def _other_content(file: File, source: Path, kept: Path | None) -> DataError:
    if kept is not None and source.parent == kept:
        source.unlink(missing_ok=True)
        what = f"{file.path} as kept here isn't what the head has: it was damaged, and is dropped now"
        return DataError(what, "Launch the run again; it is sent anew")
    return DataError(f"{file.path} has changed since the launch", "Launch the run again once nothing writes to it")
