from collections.abc import Callable
from types import SimpleNamespace

import pytest
from textual.widgets import Footer, Input
from textual.widgets._footer import FooterKey

from daisychain.errors import LinkError
from daisychain.link.messages import Done, Examine, ListNics, Measure
from daisychain.tui.app import DaisyApp
from daisychain.tui.checklist import Matrix, moved
from daisychain.tui.screens.check import Check
from daisychain.tui.screens.cluster import Cluster
from daisychain.tui.screens.dialogs import Reading
from daisychain.tui.screens.launch import LaunchScreen
from daisychain.tui.text import line_width, plain
from daisychain.tui.widgets import Lines, Rows

AppOf = Callable[..., DaisyApp]


def shown(app: DaisyApp, widget: str) -> str:
    return "\n".join("".join(text for text, _ in line) for line in app.screen.query_one(widget, Lines).lines)


def offered(app: DaisyApp) -> list[str]:
    """What the footer has, in its order; two keys for the same stand there once."""
    shown_ones = (active.binding for active in app.screen.active_bindings.values() if active.binding.show)
    return list(dict.fromkeys(binding.description for binding in shown_ones))


def told(app: DaisyApp) -> str:
    return "\n".join(notice.message for notice in app._notifications)


@pytest.fixture
def ill(make: SimpleNamespace) -> SimpleNamespace:
    """A backend whose chain has a firewall on the head, an old torch, and a busy node."""
    busy = make.verdict("mini-pc", "load", "63% of mini-pc's processor is in use by other programs", "End them there")
    torch = make.verdict("old-laptop", "torch", "anna has torch 2.13.0 and old-laptop 2.4.1", "Upgrade it", "refuse")
    backend = make.backend(make.world())
    backend.answers[ListNics] = make.nics()
    backend.answers[Examine] = make.examined(None, busy, torch, blocked=((2, 0),))
    return backend


async def test_while_it_runs_it_says_what_is_being_tried(
    app_of: AppOf, make: SimpleNamespace, ill: SimpleNamespace
) -> None:
    app = app_of(ill)
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)
        ill.answering.clear()
        await pilot.press("d")
        await make.settle(pilot)
        assert isinstance(app.screen, Check)
        assert "Checking anna, mini-pc, old-laptop" in shown(app, "#trying")
        assert "6 ways between them" in shown(app, "#trying")
        assert offered(app) == ["help", "quit", "back", "NIC", "theme"]
        await pilot.press("r", "f", "c", "x", "enter")
        ill.answering.set()
        await make.settle(pilot)
        assert not app.screen.query_one("#trying").display
        assert ill.asked == [ListNics(), Examine()]
        assert "✗ 2 refuse   ! 2 warn   ✓ 11 ok" in shown(app, "#title")
        assert offered(app) == [
            "help", "quit", "evidence", "matrix", "fix", "copy", "again", "back", "NIC", "measure", "theme",
        ]  # fmt: skip


async def test_the_first_refused_line_is_selected_and_said_in_full(
    app_of: AppOf, make: SimpleNamespace, ill: SimpleNamespace
) -> None:
    app = app_of(ill)
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)
        await pilot.press("d")
        await make.settle(pilot)
        rows = app.screen.query_one("#checks", Rows)
        assert rows.has_focus
        assert next(iter(rows.rows)) == "of anna"
        assert plain(rows.rows[rows.selected or ""]).startswith("  ✗ refuse path ")
        assert "or sudo firewall-cmd --zone=trusted --add-source=192.168.1.42" in shown(app, "#selected")
        await pilot.press("c")
        assert app.clipboard == ill.answers[Examine].verdicts[-1].remedy
        # headings are passed over, and the first one is still seen from the line below it
        await pilot.press("down", "down", "down", "down", "down")
        await make.settle(pilot)
        assert "63% of mini-pc's" in shown(app, "#selected")
        await pilot.press("home")
        await make.settle(pilot)
        assert rows.scroll_offset.y == 0


async def test_what_is_fine_has_no_remedy_to_copy_and_nothing_to_fix(
    app_of: AppOf, make: SimpleNamespace, ill: SimpleNamespace
) -> None:
    app = app_of(ill)
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)
        await pilot.press("d", "down")
        await make.settle(pilot)
        assert "copy" not in offered(app)
        assert "nothing to do" in shown(app, "#selected")
        await pilot.press("f")
        await make.settle(pilot)
        assert isinstance(app.screen, Check)
        assert "Nothing to fix here: this is fine" in told(app)


async def test_enter_shows_the_evidence_and_goes_back(
    app_of: AppOf, make: SimpleNamespace, ill: SimpleNamespace
) -> None:
    app = app_of(ill)
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)
        await pilot.press("d", "enter")
        await make.settle(pilot)
        assert isinstance(app.screen, Reading)
        for words in ("41200000000 bytes", "eth0", "AMD Ryzen", "2.13.0", "✗ old-laptop → anna"):
            assert words in shown(app, "#reading")
        await pilot.press("pagedown", "down", "c", "enter")
        assert "41200000000 bytes" in app.clipboard
        assert isinstance(app.screen, Check)


async def test_x_switches_to_the_ways_and_back(app_of: AppOf, make: SimpleNamespace, ill: SimpleNamespace) -> None:
    app = app_of(ill)
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)
        await pilot.press("d", "x")
        await make.settle(pilot)
        assert app.screen.query_one(Matrix).has_focus
        assert "[✗]" in shown(app, "#matrix").splitlines()[3]
        assert "not tried" in shown(app, "#legend")
        assert "✗ blocked  old-laptop (192.168.1.42) → anna (192.168.1.20)" in shown(app, "#way")
        assert "list" in offered(app)
        await pilot.press("c")
        assert "sudo ufw allow from 192.168.1.42" in app.clipboard
        await pilot.press("right", "f")
        await make.settle(pilot)
        assert "✓ works  old-laptop (192.168.1.42) → mini-pc" in shown(app, "#way")
        assert "Nothing to fix here" in told(app)
        await pilot.press("enter")
        await make.settle(pilot)
        assert "wlp2s0" in shown(app, "#reading")
        await pilot.press("escape", "x")
        await make.settle(pilot)
        assert app.screen.query_one("#checks", Rows).has_focus


def test_the_selected_way_stays_in_the_square() -> None:
    assert moved((0, 0), -1, -1, 3) == (0, 0)
    assert moved((2, 1), 1, 1, 3) == (2, 2)


async def test_f_puts_the_good_nodes_into_the_launch_form(
    app_of: AppOf, make: SimpleNamespace, ill: SimpleNamespace
) -> None:
    app = app_of(ill)
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)
        await pilot.press("d")
        await make.settle(pilot)
        assert "f leave out old-laptop and launch with the other 2 nodes" in shown(app, "#selected")
        await pilot.press("f")
        await make.settle(pilot)
        assert isinstance(app.screen, LaunchScreen)
        assert app.screen.query_one("#nodes", Input).value == "anna, mini-pc"
        assert shown(app, "#command") == "daisychain run demo --nodes anna,mini-pc"
        await pilot.press("escape")
        assert isinstance(app.screen, Check)
        ill.send(make.world(run=make.run()))
        await make.settle(pilot)
        await pilot.press("f")
        await make.settle(pilot)
        assert isinstance(app.screen, Check)
        assert "A run is going on" in told(app)


async def test_r_checks_again_and_the_selection_follows_what_is_found(
    app_of: AppOf, make: SimpleNamespace, ill: SimpleNamespace
) -> None:
    app = app_of(ill)
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)
        await pilot.press("d", "x")
        await make.settle(pilot)
        ill.answers[Examine] = make.examined(make.three()[:1])
        await pilot.press("r")
        await make.settle(pilot)
        assert ill.asked.count(Examine()) == 2
        assert "refuse" not in shown(app, "#title")
        assert app.screen.query_one("#checks", Rows).selected == "0"
        assert "matrix" not in offered(app)
        await pilot.press("b")
        assert isinstance(app.screen, Cluster)


async def test_a_check_that_fails_says_so_and_can_be_tried_again(
    app_of: AppOf, make: SimpleNamespace, ill: SimpleNamespace
) -> None:
    well = ill.answers[Examine]
    app = app_of(ill)
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)
        for answer, words in (
            (LinkError("the agent is gone", "Start it"), "✗ the agent is gone"),
            (Done(), "! The agent"),
        ):
            ill.answers[Examine] = answer
            await pilot.press("d")
            await make.settle(pilot)
            assert words in shown(app, "#trying")
            assert offered(app) == ["help", "quit", "again", "back", "NIC", "theme"]
            await pilot.press("f", "c", "x", "enter", "down", "escape")
        ill.answers[Examine] = well
        await pilot.press("d")
        await make.settle(pilot)
        assert "2 refuse" in shown(app, "#title")


async def test_m_lets_the_node_of_the_line_measure_again_and_f_where_it_is_alone(
    app_of: AppOf, make: SimpleNamespace, ill: SimpleNamespace
) -> None:
    app = app_of(ill)
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)
        await pilot.press("d")
        await make.settle(pilot)
        await pilot.press("end", "m")
        await make.settle(pilot)
        assert ill.asked[2:] == [Measure(node="old-laptop")]
        assert "old-laptop measures its speed again" in told(app)
        busy = make.verdict("anna", "load", "63% of anna's processor is in use by other programs", "End them")
        ill.answers[Examine] = make.examined(make.three()[:1], busy)
        ill.answers[Measure] = LinkError("anna takes part in a run")
        await pilot.press("r")
        await make.settle(pilot)
        assert "f measure the speed of anna again" in shown(app, "#selected")
        await pilot.press("f")
        await make.settle(pilot)
        assert ill.asked[-1] == Measure(node="anna")
        assert "anna takes part in a run" in told(app)


async def test_leaving_while_it_runs_is_fine(app_of: AppOf, make: SimpleNamespace, ill: SimpleNamespace) -> None:
    app = app_of(ill)
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)
        ill.answering.clear()
        await pilot.press("d", "b")
        ill.answering.set()
        await make.settle(pilot)
        assert isinstance(app.screen, Cluster)


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("size", [(60, 20), (80, 24), (120, 40)])
async def test_eight_nodes_with_long_names_fit(
    app_of: AppOf, make: SimpleNamespace, size: tuple[int, int], theme: str
) -> None:
    names = ["anna", "長" * 40, "a-very-long-host-name-of-a-machine" * 3, *(f"node-{at}" for at in range(5))]
    nodes = tuple(make.node(name, address=f"192.168.1.{at + 20}") for at, name in enumerate(names))
    backend = make.backend(make.world(nodes=nodes))
    backend.answers[ListNics] = make.nics()
    backend.answers[Examine] = make.examined(nodes, blocked=((2, 1), (1, 0)))
    app = app_of(backend, theme=theme)
    async with app.run_test(size=size) as pilot:
        await make.settle(pilot)
        for keys in (("d",), ("end",), ("x",), ("enter",), ("escape", "question_mark")):
            await pilot.press(*keys)
            await make.settle(pilot)
            for widget in app.screen.walk_children():
                if not widget.display or not widget.region.width or isinstance(widget, (Input, Footer, FooterKey)):
                    continue
                assert widget.region.right <= size[0], (keys, widget)
                assert not widget.show_horizontal_scrollbar, (keys, widget)
                if isinstance(widget, Rows) and widget.region.height:
                    cells = widget.scrollable_content_region.width
                    assert all(line_width(line) <= cells for line in widget.rows.values()), (keys, widget)
                if isinstance(widget, Matrix):
                    assert all(line_width(line) <= widget.size.width for line in widget.lines), (keys, widget)


async def test_names_that_look_like_markup_are_only_text(app_of: AppOf, make: SimpleNamespace) -> None:
    evil = "[red]x[/red][@click=app.bell]y[/]\x1b]0;t\x07 [/"
    nodes = (make.node(), make.node(evil, address="10.0.0.2"))
    more = make.verdict(evil, evil, evil, evil, "refuse")
    backend = make.backend(make.world(nodes=nodes))
    backend.answers[ListNics] = make.nics(evil)
    backend.answers[Examine] = make.examined(nodes, more, blocked=((1, 0),))
    app = app_of(backend)
    async with app.run_test(size=(120, 40)) as pilot:
        await make.settle(pilot)
        for keys in (("d",), ("end",), ("enter",), ("escape", "x"), ("enter",)):
            await pilot.press(*keys)
            await make.settle(pilot)
            picture = app.export_screenshot()
            assert "[red]x" in picture, keys
            assert "\x1b" not in picture
