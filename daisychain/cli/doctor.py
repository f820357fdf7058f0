"""`daisychain doctor`: what is well and what isn't, on this machine and on the chain it leads."""

import argparse
import getpass
import json
import os
import platform
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from daisychain import __version__
from daisychain.cli.join import split_address
from daisychain.cli.look import SIGNS, flags_of
from daisychain.cli.redact import redact
from daisychain.cli.surface import Surface
from daisychain.config import DEFAULT_PORT, write_atomically
from daisychain.errors import DaisyError, PreflightError, about
from daisychain.link.client import connect_or_start
from daisychain.link.messages import Examine, Examined, ListNics, Nics

PATIENCE_S = 30.0
LOG_LINES = 200


async def command(words: argparse.Namespace, surface: Surface) -> int:
    host, port = split_address(words.peer)
    async with await connect_or_start(surface.paths, surface.settings, flags_of(surface)) as agent:
        nics = await agent.expect(ListNics(), Nics)
        found = await agent.expect(Examine(host=host, port=port or DEFAULT_PORT), Examined, PATIENCE_S)
    facts = facts_of(found, nics)
    if words.bundle:
        names = [node.name for node in found.nodes] + [v.node for v in found.verdicts]
        _write(Path(words.bundle), facts, surface, names)
    surface.event("doctor", **facts)
    for line in lines(found, nics):
        surface.say(line)
    if words.bundle:
        surface.say(f"\n{words.bundle} has all of this without addresses and names; read it before you send it")
    return PreflightError.exit_code if any(v.level == "refuse" for v in found.verdicts) else 0


def facts_of(found: Examined, nics: Nics) -> dict[str, Any]:
    """What `--json` says."""
    return {
        "nic": nics.chosen,
        "verdicts": msgspec.to_builtins(found.verdicts),
        "nodes": [
            {"name": n.name, "address": n.address, "nic": n.nic, "versions": msgspec.to_builtins(n.versions),
             "device": msgspec.to_builtins(n.device), "condition": msgspec.to_builtins(condition)}
            for n, condition in zip(found.nodes, found.conditions, strict=True)
        ],
        "paths": [{"from": start, "to": end, "reason": reason} for start, end, reason in found.paths],
        "nics": [
            {**msgspec.to_builtins(nic), "verdict": msgspec.to_builtins(verdict)}
            for nic, verdict in zip(nics.nics, nics.verdicts, strict=True)
        ],
    }  # fmt: skip


def lines(found: Examined, nics: Nics) -> list[str]:
    """The checklist for people, then the pairs of nodes, then this machine's NICs."""
    said = [
        f"{SIGNS[v.level]} {v.level:6} {v.check:9} {about(v)}" + (f". {v.remedy}" if v.remedy else "")
        for v in found.verdicts
    ]
    if found.paths:
        said += ["", *_matrix(found)]
    said.append("")
    for nic, v in zip(nics.nics, nics.verdicts, strict=True):
        mark = "*" if nic.name == nics.chosen else " "
        said.append(f"{mark} {SIGNS[v.level]} {nic.name:12} {nic.kind:10} {v.reason}")
    return said


def _matrix(found: Examined) -> list[str]:
    """Who reaches whom: from the left to the top."""
    names = [node.name[:10] for node in found.nodes]
    why = {(start, end): reason for start, end, reason in found.paths}
    rows = [f"{'from / to':10} " + " ".join(f"{name:10}" for name in names)]
    for start, short in zip(found.nodes, names, strict=True):
        cells = [SIGNS["refuse" if why.get((start.name, end.name)) else "ok"] for end in found.nodes]
        cells = ["-" if end is start else cell for end, cell in zip(found.nodes, cells, strict=True)]
        rows.append(f"{short:10} " + " ".join(f"{cell:10}" for cell in cells).rstrip())
    return rows


def _write(file: Path, facts: Mapping[str, Any], surface: Surface, names: list[str]) -> None:
    try:
        log = surface.paths.agent_log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
    except OSError:
        log = []
    whole = {"daisychain": __version__, "platform": platform.platform(), "doctor": facts, "log": log}
    bundle = redact(whole, [*names, socket.gethostname(), Path.home().name, _user()])
    try:
        write_atomically(file, json.dumps(bundle, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise DaisyError(f"can't write {file}: {error.strerror or error}", "Name another file with --bundle") from error


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return os.environ.get("USER", "")
