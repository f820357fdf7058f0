"""The app as a whole: the agent's comings and goings, themes, help, quitting, what it imports."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from textual.widgets import Footer, Input
from textual.widgets._footer import FooterKey

from daisychain.config import Paths
from daisychain.errors import LinkError
from daisychain.link.messages import BeWorker
from daisychain.tui.app import DaisyApp
from daisychain.tui.screens.cluster import Cluster
from daisychain.tui.screens.help import Help, matching
from daisychain.tui.screens.join import Join
from daisychain.tui.screens.run import RunScreen
from daisychain.tui.text import line_width
from daisychain.tui.widgets import Lines, Rows

AppOf = Callable[..., DaisyApp]


def shown(app: DaisyApp, widget: str) -> str:
    """The text of a Lines widget on the current screen."""
    return "\n".join("".join(text for text, _ in line) for line in app.screen.query_one(widget, Lines).lines)


def footer(app: DaisyApp) -> list[str]:
    """Keys that the current screen offers, in order."""
    return [active.binding.description for active in app.screen.active_bindings.values() if active.binding.show]


async def test_before_the_agent_answers_it_says_what_it_waits_for(app_of: AppOf, make: SimpleNamespace) -> None:
    app = app_of(make.backend())
    async with app.run_test() as pilot:
        await pilot.pause()
        assert "connecting" in shown(app, "#title")
        assert footer(app)[:2] == ["help", "quit"]


async def test_a_lost_agent_is_shown_and_found_again(app_of: AppOf, make: SimpleNamespace) -> None:
    backend = make.backend(make.world())
    app = app_of(backend)
    async with app.run_test() as pilot:
        await make.settle(pilot)
        assert not app.screen.query_one("#banner").display
        backend.send(LinkError("this machine's agent is gone"))
        await make.settle(pilot)
        assert app.screen.query_one("#banner").display
        assert "! agent gone; reconnecting" in shown(app, "#banner")
        assert "3 nodes" in shown(app, "#title")
        backend.send(None)
        await make.settle(pilot)
        assert backend.streams >= 3
        backend.send(make.world(nodes=make.three()[:2]))
        await make.settle(pilot)
        assert not app.screen.query_one("#banner").display
        assert "2 nodes" in shown(app, "#title")


async def test_join_asks_once_to_be_a_worker_and_again_of_a_new_agent(app_of: AppOf, make: SimpleNamespace) -> None:
    backend = make.backend(make.world(role="worker"))
    app = app_of(backend, start="join", join=BeWorker(host="anna", token="T"))
    async with app.run_test() as pilot:
        backend.send(make.world(role="worker", advice="x"))
        await make.settle(pilot)
        assert backend.asked == [BeWorker(host="anna", token="T")]
        backend.send(None)
        backend.send(make.world(role="worker"))
        await make.settle(pilot)
        assert backend.asked == [BeWorker(host="anna", token="T"), BeWorker()]


async def test_a_cluster_screen_asks_for_nothing(app_of: AppOf, make: SimpleNamespace) -> None:
    backend = make.backend(make.world())
    app = app_of(backend)
    async with app.run_test() as pilot:
        await make.settle(pilot)
        assert isinstance(app.screen, Cluster)
        assert backend.asked == []


async def test_a_worker_sees_its_membership_however_the_screen_was_opened(app_of: AppOf, make: SimpleNamespace) -> None:
    app = app_of(make.backend(make.world(role="worker", joined="anna", connected=True)))
    async with app.run_test() as pilot:
        await make.settle(pilot)
        assert isinstance(app.screen, Join)
        assert "Member of anna" in shown(app, "#member")


async def test_started_on_a_run_it_shows_the_run_with_the_cluster_behind(app_of: AppOf, make: SimpleNamespace) -> None:
    app = app_of(make.backend(make.world(run=make.run())), start="run")
    async with app.run_test() as pilot:
        await make.settle(pilot)
        assert isinstance(app.screen, RunScreen)
        await pilot.press("escape")
        assert isinstance(app.screen, Cluster)


async def test_only_the_newest_of_a_burst_is_drawn(app_of: AppOf, make: SimpleNamespace) -> None:
    backend = make.backend(*(make.world(advice=f"advice {number}") for number in range(200)))
    app = app_of(backend)
    drawn = []
    async with app.run_test() as pilot:
        original = app.screen.show  # type: ignore[attr-defined]
        app.screen.show = lambda snapshot: (drawn.append(snapshot.advice), original(snapshot))  # type: ignore[attr-defined]
        await make.settle(pilot)
        for number in range(200, 400):
            backend.send(make.world(advice=f"advice {number}"))
        await make.settle(pilot)
    assert drawn[-1] == "advice 399"
    assert len(drawn) < 100


async def test_T_cycles_through_the_themes_and_remembers(app_of: AppOf, make: SimpleNamespace, paths: Paths) -> None:
    app = app_of(make.backend(make.world()))
    async with app.run_test() as pilot:
        seen = [app.theme]
        for _ in app.theme_files:
            await pilot.press("T")
            seen.append(app.theme)
        await make.settle(pilot)
    assert seen[0] == seen[-1] == "dark"
    assert set(seen) >= {"dark", "light", "colour-safe"}
    assert 'theme = "dark"' in paths.config_file.read_text()


async def test_a_bad_or_unknown_theme_is_told_and_not_fatal(app_of: AppOf, make: SimpleNamespace, paths: Paths) -> None:
    (paths.config / "themes").mkdir(parents=True)
    (paths.config / "themes" / "mine.toml").write_text("[red")
    app = app_of(make.backend(make.world()), theme="nosuch")
    async with app.run_test() as pilot:
        await make.settle(pilot)
        told = " ".join(notice.message for notice in app._notifications)
        assert "mine.toml" in told
        assert "nosuch" in told
        assert app.theme == "dark"


async def test_help_opens_searches_and_closes(app_of: AppOf, make: SimpleNamespace) -> None:
    app = app_of(make.backend(make.world()))
    async with app.run_test() as pilot:
        await pilot.press("question_mark")
        assert isinstance(app.screen, Help)
        assert "forget" in shown(app, "#entries")
        await pilot.press(*"token")
        assert "invite" in shown(app, "#entries")
        assert "forget" not in shown(app, "#entries")
        await pilot.press("escape")
        assert isinstance(app.screen, Cluster)
    assert matching("no such thing at all") == [(("nothing matches", "dim"),)]


async def test_quitting_says_that_the_run_goes_on(app_of: AppOf, make: SimpleNamespace) -> None:
    for run, going in ((make.run(), True), (make.run(phase="finished"), False), (None, False)):
        app = app_of(make.backend(make.world(run=run)))
        said: list[object] = []
        original = app.exit
        app.exit = lambda *rest, message=None, said=said, original=original, **more: (  # type: ignore[method-assign]
            said.append(message), original(*rest, message=message, **more)
        )  # fmt: skip
        async with app.run_test() as pilot:
            await make.settle(pilot)
            await pilot.press("q")
        assert ("goes on" in str(said[0])) == going


async def test_names_that_look_like_markup_are_only_text(app_of: AppOf, make: SimpleNamespace) -> None:
    evil = "[red]x[/red][@click=app.bell]y[/]\x1b]0;t\x07 [/"
    nodes = (*make.three(), make.node(evil, role="worker", nic=evil, detail=evil))
    world = make.world(
        nodes=nodes, requests=(make.request(evil, address=evil, device=evil),), advice=evil,
        run=make.run(name=evil, detail=evil, phase="failed", error=evil, log=(evil,), log_path=evil),
    )  # fmt: skip
    app = app_of(make.backend(world))
    async with app.run_test(size=(120, 40)) as pilot:
        await make.settle(pilot)
        app.screen.query_one("#nodes").focus()
        await pilot.press("end")
        await make.settle(pilot)
        picture = app.export_screenshot()
        assert "[red]x[/red]" in picture
        assert "\x1b" not in picture
        await pilot.press("f")
        await make.settle(pilot)
        assert "[red]x[/red]" in app.export_screenshot()
        await pilot.press("n", "r")
        await make.settle(pilot)
        assert "[red]x[/red]" in app.export_screenshot()
        await pilot.press("c", "b", "l")
        await make.settle(pilot)
        app.tell(evil)
        await make.settle(pilot)
        assert "[red]x[/red]" in app.export_screenshot()
    app = app_of(make.backend(make.world(role="worker", heads=(make.head(evil),), nodes=())), start="join")
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)
        assert "[red]x" in app.export_screenshot()


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (120, 40)])
async def test_nothing_is_wider_than_the_terminal(app_of: AppOf, make: SimpleNamespace, size: tuple[int, int]) -> None:
    wide = make.node("a-very-long-host-name-of-a-machine." * 4, detail="d" * 300)
    world = make.world(nodes=(*make.three(), wide), requests=(make.request("r" * 90),), run=make.run())
    app = app_of(make.backend(world))
    async with app.run_test(size=size) as pilot:
        for keys in ((), ("r",), ("v",), ("v",), ("b", "question_mark"), ("escape", "i")):
            await pilot.press(*keys)
            await make.settle(pilot)
            for widget in app.screen.walk_children():
                # the line of keys is the one thing that may be cut: help and quit stand first in it
                if not widget.display or not widget.region.width or isinstance(widget, (Input, Footer, FooterKey)):
                    continue
                assert widget.region.right <= size[0], (keys, widget)
                assert not widget.show_horizontal_scrollbar, (keys, widget)
                if isinstance(widget, Rows):
                    cells = widget.scrollable_content_region.width
                    assert all(line_width(line) <= cells for line in widget.rows.values()), (keys, widget)
            await pilot.pause()
        await pilot.press("escape")
        assert footer(app)[:2] == ["help", "quit"]


def test_importing_the_app_loads_neither_torch_nor_the_network_nor_the_agent() -> None:
    code = (
        "import sys; import daisychain.tui.app, daisychain.tui.terminal, daisychain.tui.screens.run;"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('torch', 'zeroconf', 'numpy')"
        " or m.startswith(('daisychain.agent', 'daisychain.machine', 'daisychain.discovery', 'daisychain.train'))];"
        "print(bad)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_the_picture_for_the_readme_can_be_drawn(tmp_path: Path) -> None:
    script = Path(__file__).with_name("picture.py")
    out = tmp_path / "run.svg"
    done = subprocess.run([sys.executable, script, out], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "old-laptop" in out.read_text()
