from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from daisychain.errors import NoNodeError, PreflightError
from daisychain.facts import RunSpec, Verdict
from daisychain.link.messages import Launch, Launched
from daisychain.tui.app import DaisyApp
from daisychain.tui.screens.cluster import Cluster
from daisychain.tui.screens.launch import LaunchScreen
from daisychain.tui.screens.run import RunScreen
from daisychain.tui.text import line_width, plain
from daisychain.tui.widgets import Lines, Rows

AppOf = Callable[..., DaisyApp]


def shown(app: DaisyApp, widget: str) -> str:
    return "\n".join("".join(text for text, _ in line) for line in app.screen.query_one(widget, Lines).lines)


def said(app: DaisyApp) -> str:
    """What the form says of its launch: in words, or as a list with its selected line."""
    rows = app.screen.query_one("#checks", Rows).rows.values()
    return "\n".join([shown(app, "#answer"), *map(plain, rows), shown(app, "#selected")])


def offered(app: DaisyApp) -> list[str]:
    return [each.binding.description for each in app.screen.active_bindings.values() if each.binding.show]


async def test_l_then_enter_launches_the_demo_and_shows_it(app_of: AppOf, make: SimpleNamespace) -> None:
    backend = make.backend(make.world())
    backend.answers[Launch] = Launched(run="r1", folder="/r1")
    app = app_of(backend)
    async with app.run_test() as pilot:
        await make.settle(pilot)
        await pilot.press("l")
        assert isinstance(app.screen, LaunchScreen)
        assert shown(app, "#command") == "daisychain run demo"
        await pilot.press("enter")
        await make.settle(pilot)
        assert [each for each in backend.asked if isinstance(each, Launch)] == [Launch(spec=RunSpec(job="demo"))]
        assert isinstance(app.screen, RunScreen)
        assert app.screen.run_id == "r1"
        await pilot.press("b")
        assert isinstance(app.screen, Cluster)


async def test_the_command_follows_the_keys(app_of: AppOf, make: SimpleNamespace) -> None:
    app = app_of(make.backend(make.world()))
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)
        await pilot.press("l", "tab", "tab", *"512", "tab", "tab", *"9")
        await pilot.pause()
        assert shown(app, "#command") == "daisychain run demo --batch 512 --seed 9"
        await pilot.press("shift+tab", "shift+tab", "shift+tab", "shift+tab", "right", "right")
        await pilot.pause()
        assert "path is empty" in shown(app, "#command")
        await pilot.press("tab", *"/d/a b.csv", "tab", *"y")
        await pilot.pause()
        assert shown(app, "#command") == "daisychain run tabular '/d/a b.csv' --target y --batch 512 --seed 9"


async def test_a_missing_file_is_said_in_place(app_of: AppOf, make: SimpleNamespace, tmp_path: Path) -> None:
    backend = make.backend(make.world())
    app = app_of(backend)
    async with app.run_test() as pilot:
        await make.settle(pilot)
        await pilot.press("l", "right", "tab", *"no.py")
        app.screen.folder = tmp_path  # type: ignore[attr-defined]
        await pilot.press("enter")
        await make.settle(pilot)
        assert "no.py doesn't exist" in shown(app, "#answer")
        assert "→" in shown(app, "#answer")
        assert backend.asked == []
        assert isinstance(app.screen, LaunchScreen)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NoNodeError("no node is ready", "Wait until one is measured"), ["✗ no node is ready", "→ Wait until"]),
        (
            PreflightError([
                Verdict(level="ok", check="disk", reason="enough disk", node="anna"),
                Verdict(level="refuse", check="torch", reason="torch 2.4 is not 2.13", remedy="Upgrade it", node="old"),
                Verdict(level="warn", check="nic", reason="on Wi-Fi", node="old"),
            ]),
            ["old  ✗ 1 refuse   ! 1 warn", "✗ refuse torch      torch 2.4 is not 2.13", "→ Upgrade it", "! warn   nic"],
        ),
    ],
)  # fmt: skip
async def test_a_refusal_stays_in_the_form(
    app_of: AppOf, make: SimpleNamespace, error: Exception, words: list[str]
) -> None:
    backend = make.backend(make.world())
    backend.answers[Launch] = error
    app = app_of(backend)
    async with app.run_test() as pilot:
        await make.settle(pilot)
        await pilot.press("l", "enter")
        await make.settle(pilot)
        for word in words:
            assert word in said(app)
        assert "enough disk" not in said(app)
        assert isinstance(app.screen, LaunchScreen)
        await pilot.press("tab", *"zzz", "enter")
        await pilot.pause()
        assert "no node is called 'zzz'" in shown(app, "#answer")
        assert len(backend.asked) == 1
        await pilot.press("escape")
        assert isinstance(app.screen, Cluster)


async def test_the_keys_of_the_form_are_offered(app_of: AppOf, make: SimpleNamespace) -> None:
    app = app_of(make.backend(make.world()))
    async with app.run_test() as pilot:
        await make.settle(pilot)
        await pilot.press("l")
        for key in ("tab", "shift+tab"):
            bindings = app.screen.active_bindings.values()
            assert [each.binding.description for each in bindings if each.binding.show] == [
                "help",
                "quit",
                "launch",
                "back",
            ]
            await pilot.press(key)


async def test_a_refused_launch_has_the_keys_of_a_check(app_of: AppOf, make: SimpleNamespace) -> None:
    old = make.verdict("old-laptop", "torch", "torch 2.4 is not 2.13", "Upgrade it", "refuse")
    wifi = make.verdict("old-laptop", "nic", "on Wi-Fi", "Plug in a cable")
    backend = make.backend(make.world())
    backend.answers[Launch] = PreflightError([wifi, old])
    app = app_of(backend)
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)
        await pilot.press("l", "enter")
        await make.settle(pilot)
        assert app.screen.query_one("#checks", Rows).selected == "1"
        assert offered(app) == ["help", "quit", "launch", "back"]
        await pilot.press("down")
        await make.settle(pilot)
        assert offered(app) == ["help", "quit", "launch", "fix", "copy", "back"]
        assert not app.screen.query_one("#selected-box").show_vertical_scrollbar
        await pilot.press("c")
        assert app.clipboard == "Upgrade it"
        await pilot.press("down", "f")
        await make.settle(pilot)
        assert any("do what the remedy says on old-laptop" in notice.message for notice in app._notifications)
        await pilot.press("up", "f")
        await make.settle(pilot)
        assert shown(app, "#command") == "daisychain run demo --nodes anna,mini-pc"
        assert "Upgrade it" not in said(app) or not app.screen.query_one("#refused").display
        await pilot.press("enter")
        await make.settle(pilot)
        launches = [each for each in backend.asked if isinstance(each, Launch)]
        assert [each.spec.nodes for each in launches] == [(), ("anna", "mini-pc")]


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (120, 40)])
async def test_a_long_refusal_fits(app_of: AppOf, make: SimpleNamespace, size: tuple[int, int]) -> None:
    nodes = tuple(make.node(f"{at}" + "n" * 60) for at in range(8))
    many = [make.verdict(node.name, "torch", f"{node.name} has no torch", "Install it", "refuse") for node in nodes]
    backend = make.backend(make.world(nodes=nodes))
    backend.answers[Launch] = PreflightError(many)
    app = app_of(backend)
    async with app.run_test(size=size) as pilot:
        await make.settle(pilot)
        await pilot.press("l", "enter", "down")
        await make.settle(pilot)
        rows = app.screen.query_one("#checks", Rows)
        assert rows.has_focus
        assert rows.size.height >= 2
        assert all(line_width(line) <= rows.scrollable_content_region.width for line in rows.rows.values())
