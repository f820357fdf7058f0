from daisychain.facts import Verdict
from daisychain.tui import presentation as say


def test_a_verdict_says_whose_why_and_what_to_do() -> None:
    verdict = Verdict(
        level="refuse", check="torch", reason="torch 2.4 is not 2.13", remedy="Install torch 2.13", node="old"
    )
    assert say.lines_text(say.verdict_lines(verdict)) == "✗ old: torch 2.4 is not 2.13\n  → Install torch 2.13"
