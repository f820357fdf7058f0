"""The house rules that no other tool checks: the README's file tree, the wheel, the import rules, the top level."""

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "daisychain"

# what git may track at the top of the repository
TOP_LEVEL = {
    ".ci",
    ".gitignore",
    "LICENSE",
    "LIMITS.md",
    "README.md",
    "daisychain",
    "pyproject.toml",
    "tests",
    "themes",
}
MAY_IMPORT_TORCH = ("daisychain/train/*.py", "daisychain/jobs/*/train.py", "daisychain/jobs/*/apply.py")


def tree() -> dict[str, str]:
    """The README's file tree: path -> description; folders end with a slash."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- tree -->\n```text\n(.*?)```", text, re.DOTALL)
    assert found, "README.md has no block ```text after <!-- tree -->"
    parents: list[str] = []
    entries: dict[str, str] = {}
    for line in found[1].splitlines():
        name, _, description = line.strip().partition(" ")
        depth, rest = divmod(len(line) - len(line.lstrip()), 2)
        assert rest == 0, f"indent by two: {line!r}"
        path = "".join(parents[:depth]) + name
        entries[path] = description.strip()
        if name.endswith("/"):
            parents[depth:] = [name]
    return entries


def tracked_or_new() -> list[Path]:
    """Files that git tracks or would add, or those on disk where this isn't a git checkout."""
    if shutil.which("git") and (ROOT / ".git").exists():
        words = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return [Path(name) for name in listed.split("\0") if name and (ROOT / name).exists()]
    hidden = re.compile(r"(^|/)(\.(?!ci|gitignore)|__pycache__|.*\.egg-info|build/|dist/)")
    files = (p.relative_to(ROOT) for p in ROOT.rglob("*") if p.is_file())
    return [p for p in files if not hidden.search(p.as_posix())]


def test_every_line_of_the_tree_exists_and_says_what_it_is() -> None:
    for path, description in tree().items():
        there = ROOT / path
        assert there.is_dir() if path.endswith("/") else there.is_file(), f"README's tree: no {path}"
        assert description, f"README's tree: {path} has no description"


def test_everything_of_the_package_is_in_the_tree() -> None:
    files = [p for p in tracked_or_new() if p.parts[0] == "daisychain"]
    modules = {p.as_posix() for p in files if p.suffix == ".py" and (p.name != "__init__.py" or len(p.parts) == 2)}
    folders = {f"{parent.as_posix()}/" for p in files for parent in p.parents if parent != Path()}
    missing = sorted((modules | folders) - set(tree()))
    assert not missing, f"not in README's tree: {', '.join(missing)}"


def test_the_top_level_is_in_the_tree_and_nothing_else_is_there() -> None:
    top = {p.parts[0] for p in tracked_or_new()}
    assert top <= TOP_LEVEL, f"not allowed at the top level: {sorted(top - TOP_LEVEL)}"
    shown = {path.split("/")[0] for path in tree()}
    assert not top - shown, f"not in README's tree: {sorted(top - shown)}"


def imports(file: Path) -> set[str]:
    """Top-level names of every module that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_torch_is_imported_where_ranks_live_and_nowhere_else() -> None:
    importing = {p.relative_to(ROOT).as_posix() for p in PACKAGE.rglob("*.py") if imports(p) & {"torch", "numpy"}}
    allowed = {p.relative_to(ROOT).as_posix() for pattern in MAY_IMPORT_TORCH for p in ROOT.glob(pattern)}
    assert importing <= allowed
    assert importing, "the check itself finds nothing"


def test_nothing_is_pickled() -> None:
    for file in PACKAGE.rglob("*.py"):
        # pickle itself may be imported for the name of the error that torch.load raises
        assert not imports(file) & {"dill", "shelve", "marshal", "cloudpickle"}, file
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            assert not re.fullmatch(r"pickle\.(loads?|dumps?|Pickler|Unpickler)", called), f"{file}:{node.lineno}"
            if called == "torch.load":
                safe = [ast.unparse(k.value) for k in node.keywords if k.arg == "weights_only"]
                assert safe == ["True"], f"{file}:{node.lineno}: torch.load without weights_only=True"


def test_the_import_rules_hold() -> None:
    pytest.importorskip("importlinter")
    words = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    done = subprocess.run(
        [*words, "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": "."},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_has_the_themes(tmp_path: Path) -> None:
    if importlib.util.find_spec("build") is None or importlib.util.find_spec("hatchling") is None:
        pytest.skip("building a wheel without the network needs build and hatchling installed")
    words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    themes = {f"daisychain/themes/{file.name}" for file in (ROOT / "themes").glob("*.toml")}
    assert themes
    assert themes <= inside
    package = {p.as_posix() for p in tracked_or_new() if p.parts[0] == "daisychain"}
    assert package <= inside, sorted(package - inside)
    assert not [name for name in inside if name.startswith("tests/")]


def test_the_readme_points_only_to_what_is_there() -> None:
    for name in ("README.md", "LIMITS.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (ROOT / target).exists(), f"{name} links to {target}"


def test_no_measured_number_is_still_missing() -> None:
    assert "TO MEASURE" not in (ROOT / "LIMITS.md").read_text(encoding="utf-8")
