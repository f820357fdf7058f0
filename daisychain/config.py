"""Settings and places: TOML file and environment -> frozen Settings; where everything lies.

Order: flag over DAISYCHAIN_* over config.toml over default. DAISYCHAIN_HOME puts every folder below one.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import platformdirs

from daisychain.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_PORT = 47632
MAX_RANKS = 64
"""CPU ranks of a node; each is a process with torch in it."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person may set in config.toml or as DAISYCHAIN_<KEY>."""

    port: int = DEFAULT_PORT
    """Control port, the same on every node unless changed."""
    nic: str = ""
    """Network interface to use; empty: the best one."""
    name: str = ""
    """This node's name on the screens; empty: the host name."""
    theme: str = "dark"
    """A theme of themes/*.toml."""
    mdns: bool = True
    """Announce a head and look for heads with multicast DNS."""
    max_bundle_mb: int = 64
    """Largest folder of a script that is shipped to the workers."""
    threads: int = 0
    """CPU threads of a rank; 0: every core this machine may use."""
    ranks: int = 0
    """CPU ranks of this machine in a run, beside those on its GPUs; 0: one, and only where no GPU can be used."""
    slowdown: float = 1.0
    """Stretch each second of compute to this many; the demo's workers use it."""
    lend_when_used: bool = False
    """Take this machine out of runs while somebody types or moves its mouse, until 5 minutes after the last input."""


class Paths(msgspec.Struct, frozen=True):
    """Every file and folder that DaisyChain keeps on this machine."""

    config: Path
    data: Path
    state: Path
    cache: Path

    @property
    def config_file(self) -> Path:
        return self.config / "config.toml"

    @property
    def identity(self) -> Path:
        """Folder of this node's key and certificates, readable by its owner only."""
        return self.data / "identity"

    @property
    def known_nodes(self) -> Path:
        return self.data / "nodes.json"

    @property
    def runs(self) -> Path:
        return self.data / "runs"

    @property
    def blobs(self) -> Path:
        """Content-addressed files that were shipped to this node."""
        return self.cache / "blobs"

    @property
    def capacity(self) -> Path:
        return self.cache / "capacity.json"

    @property
    def agent_log(self) -> Path:
        return self.state / "agent.log"

    @property
    def agent_lock(self) -> Path:
        return self.state / "agent.json"

    @property
    def work(self) -> Path:
        """Unpacked bundles and rank logs of runs in progress."""
        return self.state / "work"


def locate(environment: Mapping[str, str] = os.environ) -> Paths:
    """The folders of this user, or those below DAISYCHAIN_HOME."""
    home = environment.get("DAISYCHAIN_HOME")
    if home:
        root = Path(home)
        return Paths(root / "config", root / "data", root / "state", root / "cache")
    dirs = platformdirs.PlatformDirs("daisychain", appauthor=False)
    return Paths(
        Path(dirs.user_config_dir), Path(dirs.user_data_dir), Path(dirs.user_state_dir), Path(dirs.user_cache_dir)
    )


def load(paths: Paths, environment: Mapping[str, str] = os.environ, flags: Mapping[str, Any] | None = None) -> Settings:
    """Settings from flags (None means not given), environment and config.toml.

    Raises ConfigError naming the file or variable and the key.
    """
    merged: dict[str, Any] = {}
    file = paths.config_file
    if file.exists():
        try:
            merged |= tomllib.loads(file.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise ConfigError(f"{file}: {error}", "Correct the file or move it away") from error
        _check(merged, str(file))
    given = {
        name: environment[variable]
        for name in Settings.__struct_fields__
        if (variable := f"DAISYCHAIN_{name.upper()}") in environment
    }
    _check(given, "the environment (DAISYCHAIN_*)", strict=False)
    merged |= given | {key: value for key, value in (flags or {}).items() if value is not None}
    settings = _check(merged, "the command line", strict=False)
    if not 0 < settings.port < 65536:
        raise ConfigError(f"port is {settings.port}", "Give a port from 1 to 65535")
    if not 0 <= settings.ranks <= MAX_RANKS:
        raise ConfigError(f"ranks is {settings.ranks}", f"Give a number from 0 to {MAX_RANKS}")
    if not 1 <= settings.slowdown < 1e6:
        raise ConfigError(f"slowdown is {settings.slowdown}", "Give a number of 1 or more")
    return settings


def _check(values: Mapping[str, Any], where: str, strict: bool = True) -> Settings:
    unknown = sorted(set(values) - set(Settings.__struct_fields__))
    if unknown:
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}", f"Known: {', '.join(Settings.__struct_fields__)}")
    try:
        return msgspec.convert(dict(values), Settings, strict=strict)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}", "Give a value of the right type") from error


def save_theme(paths: Paths, theme: str) -> None:
    """Remember a theme in config.toml, leaving every other line as it is."""
    save(paths, "theme", theme)


def save(paths: Paths, key: str, text: str) -> None:
    """Remember one setting that is text in config.toml, leaving every other line as it is."""
    file = paths.config_file
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    kept = [line for line in lines if line.split("=")[0].strip() != key]
    file.parent.mkdir(parents=True, exist_ok=True)
    # a JSON string is a TOML string as well
    write_atomically(file, "\n".join([f"{key} = {json.dumps(text, ensure_ascii=False)}", *kept]) + "\n")


def write_atomically(file: Path, text: str | bytes, mode: int = 0o644) -> None:
    """Write a small file whole or not at all: temporary file, fsync, rename."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    data = text.encode() if isinstance(text, str) else text
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
