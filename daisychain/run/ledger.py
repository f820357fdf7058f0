"""The ledger proves that every sample of an epoch was applied exactly once: a line an applied step, and a check.

    {"v":1,"step":7,"epoch":0,"index":6,"first":60,"batch":10,"digest":123,"shares":{"head":7,"old":3},"generation":0}
    {"v":1,"event":"resumed","step":5}      steps after 5 are void, the next line is step 6

Steps count from 1, epochs and index (the step's number in its epoch) from 0. first: place of the batch's first sample
in the epoch's order. digest: sum modulo 2**64 of mix(row) over the batch's dataset row numbers; a sum doesn't depend
on order or shares, so a whole epoch's is known beforehand.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import IO, Any, Literal

import msgspec

from daisychain.facts import Verdict

WORD = 2**64


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """One applied step."""

    v: Literal[1] = 1
    step: int
    epoch: int
    index: int
    first: int
    batch: int
    digest: int
    shares: dict[str, int]
    generation: int


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """The run went on after this step; what came later is void."""

    v: Literal[1] = 1
    event: Literal["resumed"] = "resumed"
    step: int


class Wrong(Exception):
    """The first thing that is wrong, in words."""


def mix(row: int) -> int:
    """A row number as 64 bits that look random.

    splitmix64's first output for the seed `row` (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
    OOPSLA 2014; constants of Vigna's splitmix64.c). The seed's increment keeps row 0 from being 0.
    """
    z = (row + 0x9E3779B97F4A7C15) % WORD
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB % WORD
    return z ^ z >> 31


@lru_cache(maxsize=8)
def whole(samples: int) -> int:
    """The digest of rows 0 to samples - 1, each once."""
    return sum(map(mix, range(samples))) % WORD


def check(lines: Iterable[str], samples: int, drop_last: bool, batch: int) -> Verdict:
    """Whether each epoch of `samples` samples in batches of `batch` was applied exactly once; pure.

    refuse: the reason is the first thing that is wrong. An unfinished last epoch is fine. In the reason epochs count
    from 1, as on the screens.
    """
    try:
        reason = _praise(_valid(lines), samples, drop_last, batch)
    except Wrong as wrong:
        remedy = "Don't rely on this run's model; train again, or resume a checkpoint from before that step"
        return Verdict(level="refuse", check="ledger", reason=str(wrong), remedy=remedy)
    return Verdict(level="ok", check="ledger", reason=reason)


def _valid(lines: Iterable[str]) -> list[Applied]:
    """Applied steps without the void ones, in order of the lines; steps count up from 1 without a gap."""
    kept: list[Applied] = []
    for number, text in enumerate(lines, 1):
        line = _parsed(text, number)
        if isinstance(line, Resumed):
            if line.step > len(kept):
                raise Wrong(f"{_steps(len(kept) + 1, line.step)} missing before a resume")
            del kept[max(line.step, 0) :]
        elif isinstance(line, Applied):
            if line.step <= len(kept):
                raise Wrong(f"step {line.step} was applied twice")
            if line.step > len(kept) + 1:
                raise Wrong(f"{_steps(len(kept) + 1, line.step - 1)} missing")
            kept.append(line)
    return kept


def _parsed(text: str, number: int) -> Applied | Resumed | None:
    """None for an event of another kind."""
    try:
        fields = msgspec.json.decode(text)
        if not isinstance(fields, dict):
            raise Wrong(f"line {number} isn't a ledger's line: not an object")
        if fields.get("event", "resumed") != "resumed":
            return None
        return msgspec.convert(fields, Resumed) if "event" in fields else msgspec.convert(fields, Applied)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeError, RecursionError) as error:
        raise Wrong(f"line {number} isn't a ledger's line: {error}") from None


def _steps(first: int, last: int) -> str:
    return f"step {first} is" if first == last else f"steps {first} to {last} are"


def _praise(applied: list[Applied], samples: int, drop_last: bool, batch: int) -> str:
    """What is right, in words. Raises Wrong."""
    if samples < 1 or batch < 1:
        raise Wrong(f"{samples} samples in batches of {batch} can't be checked")
    counted = samples - samples % batch if drop_last else samples
    if not counted:
        raise Wrong(f"batches of {batch} leave nothing of {samples} samples when the last one is dropped")
    per_epoch = -(-counted // batch)
    for line in applied:
        _check_step(line, per_epoch, counted, batch)
    complete = len(applied) // per_epoch
    for epoch, of_epoch in groupby(applied[: complete * per_epoch], key=lambda line: line.epoch):
        total = sum(line.digest for line in of_epoch) % WORD
        if counted == samples and total != whole(samples):
            raise Wrong(f"epoch {epoch + 1}'s digest differs: some sample is missing or doubled")
    return _summary(applied[complete * per_epoch :], complete, samples, counted)


def _check_step(line: Applied, per_epoch: int, counted: int, batch: int) -> None:
    epoch, index = divmod(line.step - 1, per_epoch)
    if (line.epoch, line.index) != (epoch, index):
        begun = f", but epoch {epoch + 1} had {min(index * batch, counted)} of {counted} samples" if index else ""
        found, wanted = f"epoch {line.epoch + 1}, batch {line.index + 1}", f"epoch {epoch + 1}, batch {index + 1}"
        raise Wrong(f"step {line.step} is {found} instead of {wanted}{begun}")
    first, size = index * batch, min(batch, counted - index * batch)
    if line.first != first:
        raise Wrong(f"step {line.step} began at sample {line.first} of its epoch instead of {first}")
    if line.batch != size:
        raise Wrong(f"step {line.step} had {line.batch} samples instead of {size}")
    if sum(line.shares.values()) != size or min(line.shares.values()) < 0:
        raise Wrong(f"step {line.step}'s shares {dict(line.shares)} don't add up to its {size} samples")
    if not 0 <= line.digest < WORD:
        raise Wrong(f"step {line.step}'s digest isn't one")


def _summary(rest: list[Applied], complete: int, samples: int, counted: int) -> str:
    said = []
    if complete:
        epochs = f"{complete} epoch{'s' * (complete != 1)} of {samples} sample{'s' * (samples != 1)}"
        dropped = f", {counted} of them in {'each epoch' if complete > 1 else 'it'} applied as counted; "
        unknown = "which ones were dropped with the last batch can't be checked"
        said.append(f"{epochs}, each applied exactly once" if counted == samples else f"{epochs}{dropped}{unknown}")
    if rest:
        done = sum(line.batch for line in rest)
        said.append(f"epoch {complete + 1} isn't finished: {done} of {counted} samples")
    return "; ".join(said) or "no step was applied yet"


# --- the file --------------------------------------------------------------------------------------------------


def read(path: Path) -> list[str]:
    """The file's lines, without a last one that is torn; none when there is no file. Raises OSError."""
    if not path.exists():
        return []
    text = path.read_bytes().decode(errors="replace")
    lines = text.split("\n")
    tail = lines.pop()
    return [*lines, tail] if _is_whole(tail) else lines


def _is_whole(line: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False


def _written(lines: Iterable[str]) -> Iterator[Applied | Resumed]:
    """What the lines say; those that are none are passed by, for `check` to name."""
    for number, text in enumerate(lines, 1):
        with suppress(Wrong):
            if line := _parsed(text, number):
                yield line


def _reached(lines: Iterable[Applied | Resumed]) -> int:
    """The last step that isn't void."""
    reached = 0
    for line in lines:
        reached = max(reached, line.step) if isinstance(line, Applied) else min(reached, line.step)
    return reached


class Ledger:
    """Appends lines; each is handed to the operating system at once, so that a killed process loses at most one."""

    def __init__(self, path: Path) -> None:
        """Opens or makes the file; a torn last line is taken away first. Raises OSError."""
        data = path.read_bytes() if path.exists() else b""
        end = data.rfind(b"\n") + 1
        self._file: IO[str] = path.open("a", encoding="utf-8", buffering=1, newline="\n")
        if _is_whole(data[end:].decode(errors="replace")):
            self._file.write("\n")
        else:
            self._file.truncate(end)

    def applied(
        self,
        *,
        step: int,
        epoch: int,
        index: int,
        first: int,
        batch: int,
        digest: int,
        shares: Mapping[str, int],
        generation: int,
    ) -> None:
        """One applied step. digest: of the whole batch, in 0 .. 2**64 - 1."""
        facts = {"step": step, "epoch": epoch, "index": index, "first": first, "batch": batch, "digest": digest}
        self._write({**facts, "shares": dict(shares), "generation": generation})

    def catch_up(self, recent: Iterable[Applied], step: int) -> None:
        """The run goes on after `step`, further back or further on. Raises OSError.

        Lines that are missing up to it come from `recent`, a checkpoint's, or from those that an earlier resume made
        void: a rank that was away has the state that they led to.
        """
        written = list(_written(read(Path(self._file.name))))
        known = {line.step: line for line in (*written, *recent) if isinstance(line, Applied)}
        for missing in range(_reached(written) + 1, step + 1):
            if line := known.get(missing):
                self.applied(**{name: getattr(line, name) for name in line.__struct_fields__ if name != "v"})
        self.resumed(step)

    def resumed(self, step: int) -> None:
        """The run goes on after this step; lines of later steps are void."""
        self._write({"event": "resumed", "step": step})

    def _write(self, facts: Mapping[str, Any]) -> None:
        self._file.write(json.dumps({"v": 1, **facts}, separators=(",", ":")) + "\n")

    def close(self) -> None:
        self._file.close()
