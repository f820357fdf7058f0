from types import SimpleNamespace

from daisychain.tui.fixes import LeaveOut, MeasureAgain, Nothing, OtherNic, bad_nodes, fix_for, words


def test_without_the_refused_nodes_a_run_can_start(make: SimpleNamespace) -> None:
    nodes = make.three()
    old = make.verdict("old-laptop", "torch", "torch 2.4 is not 2.13", "Install it", "refuse")
    fix = fix_for(old, (old,), nodes, "id-anna")
    assert fix == LeaveOut(nodes=("anna", "mini-pc"), without=("old-laptop",))
    assert words(fix) == "leave out old-laptop and launch with the other 2 nodes"
    own = make.verdict("anna", "torch", "no torch", "Install it", "refuse")
    assert fix_for(own, (own, old), nodes, "id-anna") == LeaveOut(("mini-pc",), ("anna", "old-laptop"))
    assert words(LeaveOut(("mini-pc",), ("anna",))) == "leave out anna and launch with mini-pc"


def test_of_two_that_do_not_reach_each_other_this_machine_stays(make: SimpleNamespace) -> None:
    nodes = anna, _, old = make.three()
    both = [make.cant_reach(old, anna), make.cant_reach(anna, old)]
    assert bad_nodes(both, nodes, "id-anna") == {"old-laptop"}
    assert fix_for(both[0], both, nodes, "id-anna") == LeaveOut(("anna", "mini-pc"), ("old-laptop",))


def test_the_one_that_reaches_nobody_goes_and_not_all_the_others(make: SimpleNamespace) -> None:
    nodes = tuple(make.node(name, address=f"10.0.0.{at}") for at, name in enumerate("abcde", 1))
    shut = [make.cant_reach(nodes[4], other) for other in nodes[:4]]
    assert bad_nodes(shut, nodes, "id-a") == {"e"}
    assert bad_nodes([*shut, make.cant_reach(nodes[1], nodes[2])], nodes, "id-a") in ({"e", "b"}, {"e", "c"})


def test_a_busy_node_may_be_left_out_of_a_wifi_warning_a_person_decides(make: SimpleNamespace) -> None:
    nodes = make.three()
    busy = make.verdict("mini-pc", "load", "63% in use", "End them")
    wifi = make.verdict("old-laptop", "nic", "on Wi-Fi", "Plug in a cable")
    assert fix_for(busy, (busy, wifi), nodes, "id-anna") == LeaveOut(("anna", "old-laptop"), ("mini-pc",))
    assert fix_for(busy, (busy,), nodes[1:2], "id-anna") == MeasureAgain("mini-pc")
    assert words(MeasureAgain("mini-pc")) == "measure the speed of mini-pc again, as it is now"
    full = make.verdict("mini-pc", "disk", "1 MB is free", "Free some")
    assert fix_for(full, (full,), nodes[1:2], "id-anna") == Nothing(
        "Nothing here is for this program to do by itself: do what the remedy says on mini-pc"
    )
    assert isinstance(fix_for(wifi, (wifi,), nodes, "id-anna"), Nothing)


def test_this_machines_nic_can_be_another_one_where_there_is_one(make: SimpleNamespace) -> None:
    nodes = make.three()
    own = make.verdict("anna", "nic", "on Wi-Fi", "Plug in a cable")
    assert fix_for(own, (own,), nodes, "id-anna", make.nics("eth1")) == OtherNic()
    assert "network interface" in words(OtherNic())
    assert isinstance(fix_for(own, (own,), nodes, "id-anna", make.nics()), Nothing)


def test_nothing_is_ours_says_so_in_a_sentence(make: SimpleNamespace) -> None:
    nodes = make.three()
    script = make.verdict("", "script", "train.py:3: reads the keyboard", "Don't", "refuse")
    lost = make.verdict("attic", "node", "attic can't be reached", "Start it")
    peer = make.verdict("anna", "peer", "nothing listens there", "Start it", "refuse")
    for verdict, word in (
        (None, "Choose"), (make.verdict("anna", "disk", "enough"), "fine"), (script, "remedy"),
        (lost, "attic isn't there"), (peer, "remedy"),
    ):  # fmt: skip
        fix = fix_for(verdict, [v for v in (script, lost, peer) if v], nodes, "id-anna")
        assert isinstance(fix, Nothing)
        assert word in fix.why
        assert words(fix) == ""
