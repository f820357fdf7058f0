from collections.abc import Callable
from types import SimpleNamespace

import msgspec
from textual.widgets import Digits

from daisychain.errors import TrustError
from daisychain.link.messages import AcceptWorker, DeclineWorker, Forget, Invitation, Lend, MakeInvite
from daisychain.tui.app import DaisyApp
from daisychain.tui.screens.cluster import Cluster
from daisychain.tui.screens.dialogs import Confirm, Invite
from daisychain.tui.widgets import Lines, Rows

AppOf = Callable[..., DaisyApp]


def shown(app: DaisyApp, widget: str) -> str:
    return "\n".join("".join(text for text, _ in line) for line in app.screen.query_one(widget, Lines).lines)


def offered(app: DaisyApp) -> set[str]:
    return {active.binding.description for active in app.screen.active_bindings.values() if active.binding.show}


async def test_alone_it_says_exactly_what_to_do(app_of: AppOf, make: SimpleNamespace) -> None:
    app = app_of(make.backend(make.world(nodes=make.three()[:1], advice="")))
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)
        assert app.screen.query_one("#empty").display
        assert "daisychain join" in shown(app, "#empty")
        assert not app.screen.query_one("#advice").display
        assert offered(app) == {"help", "quit", "launch", "check", "invite", "theme"}


async def test_the_keys_follow_the_state(app_of: AppOf, make: SimpleNamespace) -> None:
    backend = make.backend(make.world(requests=(make.request(),), run=make.run()))
    app = app_of(backend)
    async with app.run_test() as pilot:
        await make.settle(pilot)
        assert offered(app) == {"help", "quit", "accept", "decline", "check", "run", "invite", "take back", "theme"}
        backend.send(make.world(run=make.run(phase="finished")))
        await make.settle(pilot)
        assert offered(app) == {"help", "quit", "launch", "check", "run", "invite", "theme"}
        await pilot.press("down")
        assert "forget" in offered(app)


async def test_a_request_shows_its_digits_big_and_nothing_happens_by_itself(
    app_of: AppOf, make: SimpleNamespace
) -> None:
    backend = make.backend(make.world(requests=(make.request(),)))
    app = app_of(backend)
    async with app.run_test() as pilot:
        await make.settle(pilot)
        assert app.screen.query_one(Digits).value == "318 204"
        await pilot.press("enter", "space", "y", "j")
        assert backend.asked == []


async def test_a_accepts_and_x_declines_the_selected_one_once(app_of: AppOf, make: SimpleNamespace) -> None:
    two = (make.request("attic"), make.request("cellar", digits="555000"))
    backend = make.backend(make.world(requests=two))
    app = app_of(backend)
    async with app.run_test() as pilot:
        await make.settle(pilot)
        await pilot.press("a")
        assert backend.asked == []
        await pilot.press("down", "down")
        await pilot.pause()
        assert app.screen.query_one(Digits).value == "555 000"
        await pilot.press("x")
        await pilot.press("up", "a")
        await pilot.pause()
        assert backend.asked == [DeclineWorker(id="id-cellar"), AcceptWorker(id="id-attic")]


async def test_a_key_pressed_as_a_request_is_replaced_hits_nobody(app_of: AppOf, make: SimpleNamespace) -> None:
    backend = make.backend(make.world(requests=(make.request("attic"),)))
    app = app_of(backend)
    async with app.run_test() as pilot:
        await make.settle(pilot)
        assert app.screen.query_one("#requests", Rows).selected == "id-attic"
        backend.send(make.world(requests=(make.request("stranger", digits="999999"),)))
        await make.settle(pilot)
        await pilot.press("a")
        assert backend.asked == []
        assert not app.screen.query_one(Digits).display


async def test_selection_stays_with_its_node_when_the_order_changes(app_of: AppOf, make: SimpleNamespace) -> None:
    backend = make.backend(make.world())
    app = app_of(backend)
    async with app.run_test() as pilot:
        await make.settle(pilot)
        await pilot.press("down")
        rows = app.screen.query_one("#nodes", Rows)
        assert rows.selected == "id-mini-pc"
        backend.send(make.world(nodes=tuple(reversed(make.three()))))
        await make.settle(pilot)
        assert rows.selected == "id-mini-pc"
        assert "192.168.1.31" in shown(app, "#detail")


async def test_forget_asks_first_and_enter_means_no(app_of: AppOf, make: SimpleNamespace) -> None:
    backend = make.backend(make.world())
    app = app_of(backend)
    async with app.run_test() as pilot:
        await make.settle(pilot)
        await pilot.press("f")
        assert isinstance(app.screen, Cluster)
        for keys, asked in (("enter",), []), (("escape",), []), (("y",), [Forget(node="id-mini-pc")]):
            app.screen.query_one("#nodes", Rows).highlighted = 1
            await pilot.press("f")
            assert isinstance(app.screen, Confirm)
            await pilot.press(*keys)
            await pilot.pause()
            assert backend.asked == asked
            assert isinstance(app.screen, Cluster)


async def test_an_invitation_shows_the_whole_command_and_copies_it(app_of: AppOf, make: SimpleNamespace) -> None:
    backend = make.backend(make.world())
    backend.answers[MakeInvite] = Invitation(token="DC1-abc", address="192.168.1.20:47632", uses=1, minutes=60)
    app = app_of(backend)
    async with app.run_test() as pilot:
        await make.settle(pilot)
        await pilot.press("i")
        await make.settle(pilot)
        assert isinstance(app.screen, Invite)
        assert "daisychain join 192.168.1.20:47632 --token DC1-abc" in shown(app, "#invitation")
        await pilot.press("c")
        assert app.clipboard == "daisychain join 192.168.1.20:47632 --token DC1-abc"
        await pilot.press("escape")
        assert isinstance(app.screen, Cluster)


async def test_a_refusal_is_told_in_words(app_of: AppOf, make: SimpleNamespace) -> None:
    backend = make.backend(make.world(requests=(make.request(),)))
    backend.answers[AcceptWorker] = TrustError("attic has not pressed j yet", "Press j there first")
    backend.answers[MakeInvite] = TrustError("no")
    app = app_of(backend)
    async with app.run_test() as pilot:
        await make.settle(pilot)
        await pilot.press("a")
        await make.settle(pilot)
        assert "attic has not pressed j yet. Press j there first" in [notice.message for notice in app._notifications]
        await pilot.press("i")
        await make.settle(pilot)
        assert isinstance(app.screen, Cluster)


async def test_an_agent_that_is_too_slow_is_told_too(app_of: AppOf, make: SimpleNamespace) -> None:
    backend = make.backend(make.world(requests=(make.request(),)))
    backend.answers[AcceptWorker] = TimeoutError()
    app = app_of(backend)
    async with app.run_test() as pilot:
        await make.settle(pilot)
        await pilot.press("a")
        await make.settle(pilot)
        assert any("no answer in time" in notice.message for notice in app._notifications)
        assert isinstance(app.screen, Cluster)


async def test_a_lost_node_stays_in_the_table_with_its_word(app_of: AppOf, make: SimpleNamespace) -> None:
    anna, mini, old = make.three()
    lost = msgspec.structs.replace(old, state="lost", detail="not heard of for 6 s")
    app = app_of(make.backend(make.world(nodes=(anna, mini, lost))))
    async with app.run_test() as pilot:
        await make.settle(pilot)
        assert "2 nodes" in shown(app, "#title")
        row = "".join(text for text, _ in app.screen.query_one("#nodes", Rows).rows["id-old-laptop"])
        assert "✗ lost" in row
        await pilot.press("end")
        await pilot.pause()
        assert "not heard of for 6 s" in shown(app, "#detail")


async def test_p_takes_this_machine_out_of_the_run_and_gives_it_back(app_of: AppOf, make: SimpleNamespace) -> None:
    own, *others = make.three()
    backend = make.backend(make.world(run=make.run()))
    app = app_of(backend)
    async with app.run_test() as pilot:
        await make.settle(pilot)
        await pilot.press("p")
        await pilot.pause()
        assert backend.asked == [Lend(lent=True)]
        backend.send(make.world(run=make.run(), nodes=(msgspec.structs.replace(own, lent=True), *others)))
        await make.settle(pilot)
        assert "give back" in offered(app)
        assert "‖ in use · its owner uses it" in shown(app, "#detail")
        await pilot.press("p", "down", "p")
        await pilot.pause()
        assert backend.asked[1:] == [Lend(lent=False)]
