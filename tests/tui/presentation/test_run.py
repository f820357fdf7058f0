from daisychain.tui import presentation as say


def test_the_log_only_grows_by_what_is_new() -> None:
    assert say.new_log_lines((), ("a", "b")) == (False, ("a", "b"))
    assert say.new_log_lines(("a", "b"), ("a", "b", "c")) == (False, ("c",))
    assert say.new_log_lines(("a", "b", "c"), ("b", "c", "d")) == (False, ("d",))
    assert say.new_log_lines(("a", "b"), ("a", "b")) == (False, ())
    assert say.new_log_lines(("a", "b"), ("x", "y")) == (True, ("x", "y"))
    assert say.new_log_lines(("a", "b"), ()) == (True, ())
