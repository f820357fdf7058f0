from collections.abc import Callable
from types import SimpleNamespace

import msgspec
import pytest

from daisychain.config import Paths, load
from daisychain.errors import LinkError, PreflightError
from daisychain.facts import Verdict
from daisychain.link.messages import Examine, Launch, ListNics
from daisychain.tui.app import DaisyApp
from daisychain.tui.screens.check import Check
from daisychain.tui.screens.launch import LaunchScreen
from daisychain.tui.screens.nic import ChooseNic
from daisychain.tui.widgets import Lines, Rows

AppOf = Callable[..., DaisyApp]
ALONE = Verdict(level="refuse", check="nic", reason="lo reaches anna only", remedy="Name another NIC", node="anna")


def told(app: DaisyApp) -> str:
    return "\n".join(notice.message for notice in app._notifications)


def shown(app: DaisyApp, widget: str) -> str:
    return "\n".join("".join(text for text, _ in line) for line in app.screen.query_one(widget, Lines).lines)


@pytest.mark.parametrize("key", ["n", "f"])
async def test_another_one_is_remembered_for_the_agents_next_start(
    app_of: AppOf, make: SimpleNamespace, paths: Paths, key: str
) -> None:
    backend = make.backend(make.world())
    (well,) = make.nics().verdicts
    backend.answers[ListNics] = msgspec.structs.replace(make.nics("lo", "eth1"), verdicts=(ALONE, ALONE, well))
    backend.answers[Examine] = make.examined(None, ALONE)
    app = app_of(backend)
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)
        await pilot.press("d")
        await make.settle(pilot)
        assert "f choose another network interface" in shown(app, "#selected")
        await pilot.press(key)
        await make.settle(pilot)
        assert isinstance(app.screen, ChooseNic)
        # those that are refused can't be selected
        await pilot.press("enter")
        assert isinstance(app.screen, ChooseNic)
        await pilot.press("down")
        await make.settle(pilot)
        assert app.screen.query_one(Rows).selected == "eth1"
        assert "next start" in shown(app, "#about-nic")
        await pilot.press("enter")
        await make.settle(pilot)
        assert isinstance(app.screen, Check)
        assert "eth1 is used once this machine's agent starts again" in told(app)
    assert load(paths, {}).nic == "eth1"


async def test_the_one_in_use_and_escape_change_nothing(app_of: AppOf, make: SimpleNamespace, paths: Paths) -> None:
    backend = make.backend(make.world())
    backend.answers[ListNics] = make.nics("eth1")
    backend.answers[Examine] = make.examined()
    app = app_of(backend)
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)
        await pilot.press("d")
        for keys in (("enter",), ("down", "escape")):
            await make.settle(pilot)
            await pilot.press("n")
            await make.settle(pilot)
            assert app.screen.query_one(Rows).selected == "eth0"
            await pilot.press(*keys)
            await make.settle(pilot)
            assert isinstance(app.screen, Check)
        backend.answers[ListNics] = LinkError("the agent is gone")
        await pilot.press("n")
        await make.settle(pilot)
        assert "the agent is gone" in told(app)
        assert isinstance(app.screen, Check)
    assert not paths.config_file.exists()


async def test_a_refused_launch_offers_it_too(app_of: AppOf, make: SimpleNamespace) -> None:
    backend = make.backend(make.world())
    backend.answers[ListNics] = make.nics("eth1")
    backend.answers[Launch] = PreflightError([ALONE])
    app = app_of(backend)
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)
        await pilot.press("l", "enter")
        await make.settle(pilot)
        await pilot.press("down", "f")
        await make.settle(pilot)
        assert isinstance(app.screen, ChooseNic)
        await pilot.press("escape")
        assert isinstance(app.screen, LaunchScreen)


async def test_a_choice_that_can_not_be_remembered_is_told(app_of: AppOf, make: SimpleNamespace, paths: Paths) -> None:
    paths.config.write_text("in the way")
    backend = make.backend(make.world())
    backend.answers[ListNics] = make.nics("eth1")
    backend.answers[Examine] = make.examined()
    app = app_of(backend)
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)
        await pilot.press("d")
        await make.settle(pilot)
        await pilot.press("n")
        await make.settle(pilot)
        await pilot.press("down", "enter")
        await make.settle(pilot)
        assert "not remembered" in told(app)
