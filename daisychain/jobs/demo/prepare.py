"""Child: the text to learn, once, for all nodes.

    python -m daisychain.jobs.demo.prepare

stdin: one JSON line {"out", "seed"}, then open until the child may end. stdout: JSON lines of kind progress (rows),
done (files, rows_train, rows_valid) or error. Writes text.bin, a byte a character, and vocabulary.json.

The text is Python's own help topics: every Python has them, but not every version the same ones, so the head's
are shipped.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from daisychain import config
from daisychain.errors import DaisyError
from daisychain.jobs import child

TEXT_FILE = "text.bin"
VOCABULARY_FILE = "vocabulary.json"
VALIDATION = 0.1
FEWEST_CHARACTERS = 100_000


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    out: str
    seed: int = 0
    """Taken for uniformity: the text and its split are always the same."""


class Vocabulary(msgspec.Struct, frozen=True):
    """What vocabulary.json holds: characters[code] is the character of a byte in text.bin."""

    characters: str
    train: int
    """The first so many characters are for training, the rest for validation."""


def main() -> None:
    """Handle the request on stdin."""
    request = msgspec.convert(child.request_from_stdin(), Request)
    text = joined(_topics())
    if len(text) < FEWEST_CHARACTERS:
        raise DaisyError("this Python's help topics are too short to learn from", "Use a complete Python")
    codes, vocabulary = encode(text)
    child.emit("progress", rows=len(text))
    out = Path(request.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / TEXT_FILE).write_bytes(codes)
    config.write_atomically(out / VOCABULARY_FILE, msgspec.json.encode(vocabulary))
    rows = vocabulary.train
    child.emit("done", files=[TEXT_FILE, VOCABULARY_FILE], rows_train=rows, rows_valid=len(codes) - rows)


def _topics() -> Mapping[str, str]:
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise DaisyError("this Python comes without its help topics", "Install the full python3 package") from error
    found: Mapping[str, str] = topics
    return found


def joined(topics: Mapping[str, str]) -> str:
    """All topics in the order of their names, in printable ASCII and line feeds."""
    text = "\n\n".join(topics[name].strip() for name in sorted(topics))
    return "".join(c if c == "\n" or " " <= c <= "~" else " " for c in text)


def encode(text: str) -> tuple[bytes, Vocabulary]:
    """A byte for each character, and what the bytes mean."""
    characters = "".join(sorted(set(text)))
    table = str.maketrans({character: chr(code) for code, character in enumerate(characters)})
    codes = text.translate(table).encode("latin-1")
    return codes, Vocabulary(characters, len(codes) - int(VALIDATION * len(codes)))


if __name__ == "__main__":
    sys.exit(child.run(main))
