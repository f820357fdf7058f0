"""Checkpoints on disk: written by a thread of their own, so that no step waits for the disk, and never half-visible.

A folder holds the newest two, `step-00001234.pt`. Each is a dict of plain values and tensors with at least the keys of
WANTED; "training" is state.Training.capture(), "ledger" is whatever the writer needs to go on.
"""

import contextlib
import os
import re
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

VERSION = 1
WANTED = {"v": int, "step": int, "epoch": int, "index": int, "training": dict, "ledger": dict}
KEEP = 2
Tell = Callable[[str], None]


class Keeper:
    """Writes checkpoints. One process at a time may keep a folder."""

    def __init__(self, folder: Path, clock: Callable[[], float], every_s: float = 30.0, *, tell: Tell) -> None:
        """clock: monotonic seconds, the one that `due` is asked with. tell: takes one line for people, in any thread.

        Makes the folder, and removes what a killed writer left half-written there.
        """
        self._folder, self._clock, self._every_s, self._tell = folder, clock, every_s, tell
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._waiting: dict[str, Any] | None = None
        self._writing = self._closed = self._failing = False
        self._last = clock()
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob("*.tmp"):
            stale.unlink(missing_ok=True)

    def due(self, now: float) -> bool:
        """Whether the last write ended at least every_s ago (or, before the first, the keeper was made then)."""
        with self._news:
            return not self._busy and now - self._last >= self._every_s

    @property
    def _busy(self) -> bool:
        return self._writing or self._waiting is not None

    def write(self, record: dict[str, Any]) -> None:
        """Begin to write, and return. The record and its tensors must not change any more.

        While another write is going on, this one comes after it; of several that wait only the newest is written.
        """
        with self._news:
            if self._closed:
                raise ValueError("the keeper is closed")
            self._waiting = record
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)
                self._thread.start()
            self._news.notify_all()

    def close(self, wait_s: float) -> bool:
        """Finish what was begun, for at most wait_s seconds. Returns whether the last write is on the disk."""
        with self._news:
            self._closed = True
            self._news.notify_all()
        if self._thread is not None:
            self._thread.join(wait_s)
        with self._news:
            return not self._busy and not self._failing

    def _work(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._closed or self._waiting is not None)
                record, self._waiting = self._waiting, None
                if record is None:
                    return
                self._writing = True
            failure = self._try(record)
            with self._news:
                told, self._failing = self._failing, bool(failure)
                self._writing, self._last = False, self._clock()
            if failure and not told:
                self._tell(failure)

    def _try(self, record: dict[str, Any]) -> str:
        """Why it failed; empty when it didn't. Whatever it is, training goes on."""
        try:
            save(self._folder, record)
        except Exception as error:
            # torch hides the operating system's error behind one of its own
            reason = error.__context__ if isinstance(error.__context__, OSError) else error
            return f"the checkpoint of step {record.get('step')} could not be written: {reason}"
        return ""


def save(folder: Path, record: dict[str, Any]) -> None:
    """Write a checkpoint so that it is there wholly or not at all, then remove older ones.

    Those of later steps are removed, too: the run has gone on from before them. Raises OSError or RuntimeError.
    """
    path = folder / f"step-{record['step']:08d}.pt"
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("wb") as stream:
            torch.save(record, stream)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync(folder)
    until_now = []
    for step, other in _found(folder):
        if step > record["step"]:
            other.unlink(missing_ok=True)
        else:
            until_now.append(other)
    for other in until_now[:-KEEP]:
        other.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """A rename lasts through a power cut once its folder is on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _found(folder: Path) -> list[tuple[int, Path]]:
    """Step and path of every checkpoint, oldest first."""
    named = ((re.fullmatch(r"step-(\d{8,20})\.pt", path.name), path) for path in folder.glob("step-*.pt"))
    return sorted((int(name[1]), path) for name, path in named if name)


def newest(folder: Path, tell: Tell) -> dict[str, Any] | None:
    """The newest checkpoint that is whole, its tensors on the CPU; None when there is none. Says which were passed by.

    Nothing in a file is executed (weights_only), and none makes this raise.
    """
    passed = []
    record = None
    for step, path in reversed(_found(folder)):
        why, record = _load(path, step)
        if record is not None:
            break
        passed.append(f"checkpoint {path.stem} {why}")
    going_on = "there is no other" if record is None else f"going on from step {record['step']}"
    for text in passed:
        tell(f"{text}; {going_on}")
    return record


def _load(path: Path, step: int) -> tuple[str, dict[str, Any] | None]:
    """Why it can't be used, or the record."""
    try:
        with zipfile.ZipFile(path) as archive:  # torch itself doesn't look at the checksums
            if archive.testzip() is not None:
                return "is torn", None
        record = torch.load(path, map_location="cpu", weights_only=True)
    except PermissionError as error:
        return f"can't be read ({error.strerror})", None
    except Exception:  # of hostile bytes, zipfile and torch raise whatever they like
        return "is torn", None
    if not isinstance(record, dict) or record.get("v") != VERSION:
        return "is of another version", None
    if any(type(record.get(key)) is not kind for key, kind in WANTED.items()) or record["step"] != step:
        return "lacks what it should have", None
    return "", record
