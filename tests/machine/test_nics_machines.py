"""Kinds, the choice and every verdict on recorded machines: the table in machines.toml."""

import sys
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from daisychain.facts import NicKind
from daisychain.machine.nics import Machine, choose, describe, judge

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE = tomllib.loads(Path(__file__).with_name("machines.toml").read_text(encoding="utf-8"))["machine"]
MACHINES: dict[str, dict[str, Any]] = {entry["name"]: entry for entry in TABLE}
WRONG = [(name, wanted) for name, entry in MACHINES.items() for wanted in entry.get("wrong", {})]
LO = {"name": "lo", "arp_type": 772, "ip": "127.0.0.1/8 ::1/128"}


def machine(entry: dict[str, Any]) -> Machine:
    """The facts of a table's entry; a field that isn't one of them is an error."""
    system = entry.get("os", "linux")
    interfaces = []
    for given in entry["interfaces"]:
        facts = dict(LO if given == "lo" else given)
        pairs = [text.split("/") for text in facts.pop("ip", "").split()]
        facts["addresses"] = [{"ip": ip, "prefix": int(prefix)} for ip, prefix in pairs]
        if "route" in facts:
            facts |= {"default_route": True, "gateway": facts.pop("route")}
        interfaces.append({"known": system == "linux"} | facts)
    facts = {key: entry[key] for key in ("os", "kernel", "vendor") if key in entry}
    made = msgspec.convert({**facts, "interfaces": interfaces}, Machine)
    fields = set(made.interfaces[0].__struct_fields__) if interfaces else set()
    assert all(set(one) <= fields for one in interfaces)
    return made


def test_the_table_is_large_and_has_every_kind_more_than_once() -> None:
    assert len(TABLE) == len(MACHINES) >= 60
    kinds = [kind for entry in TABLE for kind in entry["kinds"].values()]
    assert {kind for kind in get_args(NicKind) if kinds.count(kind) < 3} == set()
    assert {entry.get("os", "linux") for entry in TABLE} == {"linux", "macos", "windows"}
    assert all(entry["nasty"] for entry in TABLE)


@pytest.mark.parametrize("name", MACHINES)
def test_every_interface_has_its_kind_and_the_evidence_for_it(name: str) -> None:
    nics = describe(machine(MACHINES[name]))
    assert {nic.name: nic.kind for nic in nics} == MACHINES[name]["kinds"]
    assert all(nic.evidence for nic in nics)
    evidence = {nic.name: nic.evidence for nic in nics}
    for interface, words in MACHINES[name].get("evidence", {}).items():
        assert words in evidence[interface]


@pytest.mark.parametrize("name", MACHINES)
def test_the_best_nic_is_chosen_and_the_reason_told(name: str) -> None:
    entry = MACHINES[name]
    nics = describe(machine(entry))
    chosen, verdict = choose(nics)
    assert (chosen.name if chosen else None) == entry.get("choice")
    assert verdict.level == entry["level"]
    assert entry["says"] in f"{verdict.reason}. {verdict.remedy}"
    assert verdict.check == "nic"
    assert bool(verdict.remedy) == (verdict.level != "ok")


@pytest.mark.parametrize(("name", "wanted"), WRONG)
def test_a_choice_of_a_person_is_judged(name: str, wanted: str) -> None:
    level, words = MACHINES[name]["wrong"][wanted].split(": ", 1)
    nics = describe(machine(MACHINES[name]))
    chosen, verdict = choose(nics, wanted)
    assert verdict.level == level
    assert words in f"{verdict.reason}. {verdict.remedy}"
    assert (chosen is None) == (level == "refuse")
    assert chosen is None or (chosen.name == wanted and verdict == judge(chosen, nics))
    assert bool(verdict.remedy) == (level != "ok")
