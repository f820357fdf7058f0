"""The roster: strangers' claims, cleaned and bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daisychain.discovery.roster import MAX_HEADS, Found, Gone, Roster, clean_name
from daisychain.facts import FoundHead

SELF, A, B = "0" * 64, "a" * 64, "b" * 64


def found(id: str = A, instance: str = "", name: str = "big", address: str = "10.0.0.1", port: int = 47632) -> Found:
    return Found(instance=instance or f"i-{id[:4]}", id=id, name=name, address=address, port=port)


def after(*events: Found | Gone) -> Roster:
    roster = Roster(SELF)
    for event in events:
        roster = roster.heard(event)
    return roster


def test_a_head_comes_moves_and_goes() -> None:
    here = after(found())
    assert here.heads == (FoundHead(id=A, name="big", address="10.0.0.1", port=47632),)
    moved = here.heard(found(address="10.0.0.9", port=5, name="bigger"))
    assert moved.heads == (FoundHead(id=A, name="bigger", address="10.0.0.9", port=5),)
    assert moved.heard(Gone(instance="i-aaaa")).heads == ()
    assert here.heads[0].address == "10.0.0.1"


def test_gone_without_found_changes_nothing() -> None:
    assert after(Gone(instance="nobody")) == Roster(SELF)


def test_this_node_is_left_out() -> None:
    assert after(found(id=SELF)).heads == ()


@pytest.mark.parametrize("id", ["", "a" * 63, "A" * 64, "a" * 64 + "\n", "g" * 64])
def test_what_is_no_id_is_left_out(id: str) -> None:
    assert after(found(id=id, instance="x")).heads == ()


@pytest.mark.parametrize(
    "address",
    [
        "",
        "big.local",
        "::1",
        "0.0.0.0",
        "224.0.0.251",
        "255.255.255.255",
        "8.8.8.8",
        "10.0.0.1 ",
        "10.0.0.01",
        "10.0.0",
    ],
)
def test_where_no_neighbour_can_be_is_left_out(address: str) -> None:
    assert after(found(address=address)).heads == ()


@pytest.mark.parametrize("address", ["10.0.0.1", "192.168.1.7", "172.20.1.1", "169.254.3.4", "100.64.0.1", "127.0.0.1"])
def test_where_neighbours_are_is_kept(address: str) -> None:
    assert after(found(address=address)).heads[0].address == address


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_what_is_no_port_is_left_out(port: int) -> None:
    assert after(found(port=port)).heads == ()


def test_a_change_to_nonsense_takes_the_head_out() -> None:
    assert after(found(), found(port=0)).heads == ()


def test_the_list_is_bounded_and_the_known_still_change() -> None:
    crowd = [found(id=f"{number:064x}", instance=str(number)) for number in range(1, 200)]
    roster = after(*crowd)
    assert len(roster.heads) == MAX_HEADS == 64
    assert roster.heard(found(id=f"{1:064x}", instance="1", port=7)).heads[0].port == 7
    room = roster.heard(Gone(instance="1")).heard(found(id=B))
    assert B in [head.id for head in room.heads]


def test_a_later_claim_to_an_id_displaces_nobody_until_the_first_goes() -> None:
    roster = after(found(instance="one"), found(instance="two", address="10.0.0.66"))
    assert [head.address for head in roster.heads] == ["10.0.0.1"]
    # an update keeps its place
    roster = roster.heard(found(instance="one", address="10.0.0.2"))
    assert [head.address for head in roster.heads] == ["10.0.0.2"]
    assert [head.address for head in roster.heard(Gone(instance="one")).heads] == ["10.0.0.66"]


def test_heads_are_listed_by_name() -> None:
    roster = after(found(id=A, name="zeta"), found(id=B, name="alpha"))
    assert [head.name for head in roster.heads] == ["alpha", "zeta"]


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("old laptop", "old laptop"),
        ("  a \t b\n c ", "a b c"),
        ("", "unnamed"),
        ("\x00\x07\x1b[2J", "unnamed"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("\x9b31mred", "31mred"),
        ("[bold red]x[/]", "(bold red)x(/)"),
        ("a\\[b]", "a/(b)"),
        ("\u202egnp.exe", "gnp.exe"),
        ("zero\u200bwidth", "zerowidth"),
        ("Küche-Mac", "Küche-Mac"),
        ("K\u0075\u0308che", "Küche"),
        ("ノート", "ノート"),
        ("語" * 40, "語" * 21),
        ("a" + "ä" * 40, "a" + "ä" * 31),
        ("😀" * 20, "😀" * 15),
        ("x" * 62 + " y", "x" * 62),
        ("\ud800bad", "bad"),
    ],
)
def test_clean_name(text: str, clean: str) -> None:
    assert clean_name(text) == clean


@given(st.text(alphabet=st.characters()), st.integers(8, 80))
def test_any_text_becomes_a_safe_name_and_stays_one(text: str, limit: int) -> None:
    name = clean_name(text, limit)
    assert 0 < len(name.encode()) <= limit
    assert name.isprintable()
    assert not set(name) & set("[]\\\x1b")
    assert clean_name(name, limit) == name
