from collections.abc import Callable
from types import SimpleNamespace

import msgspec
from textual.widgets import Digits

from daisychain.link.messages import BeWorker, ConfirmHead, Lend
from daisychain.tui.app import DaisyApp
from daisychain.tui.screens.dialogs import AskAddress
from daisychain.tui.screens.join import Join
from daisychain.tui.widgets import Lines

AppOf = Callable[..., DaisyApp]


def shown(app: DaisyApp, widget: str) -> str:
    return "\n".join("".join(text for text, _ in line) for line in app.screen.query_one(widget, Lines).lines)


def offered(app: DaisyApp) -> set[str]:
    return {active.binding.description for active in app.screen.active_bindings.values() if active.binding.show}


async def test_j_joins_the_only_head_and_no_other_key_does(app_of: AppOf, make: SimpleNamespace) -> None:
    backend = make.backend(make.world(role="worker", heads=(make.head(),)))
    app = app_of(backend, start="join")
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)
        assert app.screen.query_one(Digits).value == "318 204"
        assert "may then run programs on this machine" in shown(app, "#question")
        await pilot.press("enter", "space", "a", "y")
        assert backend.asked == [BeWorker()]
        await pilot.press("j")
        await pilot.pause()
        assert backend.asked == [BeWorker(), ConfirmHead(id="id-anna")]


async def test_of_two_heads_one_must_be_chosen(app_of: AppOf, make: SimpleNamespace) -> None:
    backend = make.backend(make.world(role="worker", heads=(make.head(), make.head("bert", digits="111222"))))
    app = app_of(backend, start="join")
    async with app.run_test() as pilot:
        await make.settle(pilot)
        await pilot.press("j")
        assert backend.asked == [BeWorker()]
        assert "join" not in offered(app)
        await pilot.press("down", "down")
        await pilot.pause()
        assert app.screen.query_one(Digits).value == "111 222"
        await pilot.press("j")
        await pilot.pause()
        assert backend.asked[1:] == [ConfirmHead(id="id-bert")]


async def test_j_waits_for_the_digits(app_of: AppOf, make: SimpleNamespace) -> None:
    for state in ("contacting", "confirmed", "joined", "refused"):
        backend = make.backend(make.world(role="worker", heads=(make.head(state=state, reason="busy"),)))
        app = app_of(backend, start="join")
        async with app.run_test() as pilot:
            await make.settle(pilot)
            await pilot.press("j")
            await pilot.pause()
            assert backend.asked == [BeWorker()]


async def test_without_heads_it_looks_and_after_a_while_explains(app_of: AppOf, make: SimpleNamespace) -> None:
    app = app_of(make.backend(make.world(role="worker", nodes=())), start="join")
    assert app.no_heads_after_s == 10
    app.no_heads_after_s = 300
    async with app.run_test() as pilot:
        await make.settle(pilot)
        assert "Looking for heads" in shown(app, "#no-heads")
    app = app_of(make.backend(make.world(role="worker", nodes=())), start="join")
    app.no_heads_after_s = 0.01
    async with app.run_test() as pilot:
        await make.settle(pilot)
        assert "multicast" in shown(app, "#no-heads")
        assert "type an address" in offered(app)


async def test_an_address_can_be_typed(app_of: AppOf, make: SimpleNamespace) -> None:
    backend = make.backend(make.world(role="worker", nodes=()))
    app = app_of(backend, start="join")
    async with app.run_test() as pilot:
        await make.settle(pilot)
        await pilot.press("e", *"not ok", "enter")
        assert isinstance(app.screen, AskAddress)
        assert "is not an address" in shown(app, "#error")
        await pilot.press(*["backspace"] * 6, *"10.0.0.7:5000", "enter")
        await pilot.pause()
        assert isinstance(app.screen, Join)
        assert backend.asked == [BeWorker(), BeWorker(host="10.0.0.7", port=5000)]
        await pilot.press("e", "escape")
        assert len(backend.asked) == 2


async def test_a_member_sees_its_head_the_run_and_its_own_share(app_of: AppOf, make: SimpleNamespace) -> None:
    nodes = tuple(msgspec.structs.replace(node, share=160) for node in make.three())
    world = make.world(
        role="worker", self_id="id-old-laptop", nodes=nodes, joined="anna", connected=True, run=make.run()
    )
    backend = make.backend(world)
    app = app_of(backend, start="join")
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)
        assert "● connected" in shown(app, "#member")
        assert "160 of 1536" in shown(app, "#own-run")
        assert offered(app) == {"help", "quit", "run", "take back", "theme"}
        assert not app.screen.query_one("#heads-box").display
        backend.send(msgspec.structs.replace(world, connected=False, run=None))
        await make.settle(pilot)
        assert "✗ not connected" in shown(app, "#member")
        assert not app.screen.query_one("#own-box").display


async def test_p_takes_the_machine_back_and_gives_it_back(app_of: AppOf, make: SimpleNamespace) -> None:
    world = make.world(role="worker", self_id="id-old-laptop", joined="anna", connected=True)
    used = tuple(msgspec.structs.replace(n, lent=n.name == "old-laptop") for n in world.nodes)
    backend = make.backend(world)
    app = app_of(backend, start="join")
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)
        await pilot.press("p")
        await pilot.pause()
        backend.send(msgspec.structs.replace(world, nodes=used))
        await make.settle(pilot)
        assert "‖ in use by you" in shown(app, "#member")
        assert "‖ in use" in shown(app, "#title")
        assert "give back" in offered(app)
        assert "take back" not in offered(app)
        await pilot.press("p")
        await pilot.pause()
        assert backend.asked == [BeWorker(), Lend(lent=True), Lend(lent=False)]


async def test_without_a_head_there_is_nobody_to_take_it_back_from(app_of: AppOf, make: SimpleNamespace) -> None:
    backend = make.backend(make.world(role="worker", heads=(make.head(),)))
    app = app_of(backend, start="join")
    async with app.run_test() as pilot:
        await make.settle(pilot)
        await pilot.press("p")
        assert backend.asked == [BeWorker()]
