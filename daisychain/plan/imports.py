"""Which installed modules a training script needs, read from its text: pure, nothing is imported."""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

PACKAGES = {
    "PIL": "pillow", "bs4": "beautifulsoup4", "cv2": "opencv-python-headless", "dateutil": "python-dateutil",
    "skimage": "scikit-image", "sklearn": "scikit-learn", "yaml": "pyyaml",
}  # fmt: skip
"""What to install for a module, where its name is another one."""
_FORGIVING = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


class Import(NamedTuple):
    """Where a module is imported first."""

    file: str
    line: int


def needed(sources: Mapping[str, str], script: str) -> dict[str, Import]:
    """Top-level names of the modules that must be installed for the script to start, and who imports them first.

    sources: the text of every Python file that is shipped, by relative path. Whatever has the name of a shipped file or
    folder, wherever that lies, is taken to be that; what lies beside the script is looked into. Not needed: what a
    function, a `try` with `except ImportError` or `if TYPE_CHECKING` imports, and whatever comes with Python. Files
    that can't be parsed are left to Python.
    """
    folder = PurePosixPath(script).parent
    shipped = {name for path in sources for name in PurePosixPath(path).with_suffix("").parts}
    found: dict[str, Import] = {}
    left, seen = [script], {script}
    while left:
        file = left.pop()
        for name, line in _imports(sources.get(file, "")):
            if name in shipped:
                inner = (f"{name}.py", f"{name}/__init__.py")
                own = {str(place / file) for place in (folder, PurePosixPath()) for file in inner}
                left += sorted((own & sources.keys()) - seen)
                seen |= own
            elif name not in sys.stdlib_module_names and name != "daisychain":
                found.setdefault(name, Import(file, line))
    return found


def package(module: str) -> str:
    """What to give to pip for it."""
    return PACKAGES.get(module, module)


def _imports(text: str) -> Iterator[tuple[str, int]]:
    """Top-level names of what a file imports while it starts, with lines."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _may_fail(node):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.split(".")[0], node.lineno
        waiting += reversed(list(ast.iter_child_nodes(node)))


def _may_fail(node: ast.AST) -> bool:
    """Whether what it imports need not be there."""
    if isinstance(node, ast.Try):
        caught = [handler.type for handler in node.handlers]
        return any(kind is None or _FORGIVING & {ast.unparse(one) for one in ast.walk(kind)} for kind in caught)
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
