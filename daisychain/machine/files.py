"""Reading what may not be there: small files of the system, and numbers in them."""

from pathlib import Path


def read(path: Path) -> str:
    """The file's text without surrounding white space; empty when it can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def number(text: str) -> int | None:
    """A whole number in decimal, or in the base of its prefix (0x); None for anything else."""
    try:
        return int(text, 0)
    except ValueError:
        return None
