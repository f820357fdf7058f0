"""What the screens say about the world: pure functions from facts to lines of text.

A state is a sign and a word and a colour; a name from elsewhere is cleaned here, once, before it goes anywhere.
"""

from daisychain.tui.presentation.check import nothing_found, trying
from daisychain.tui.presentation.checklist import tally
from daisychain.tui.presentation.cluster import ALONE, advice_line, chain_title
from daisychain.tui.presentation.join import (
    digits_text,
    head_question,
    head_row,
    no_heads,
    request_question,
    request_row,
)
from daisychain.tui.presentation.lines import border_name, lines_text
from daisychain.tui.presentation.nodes import capacity_text, device_text, node_detail, node_header, node_row, node_state
from daisychain.tui.presentation.ranks import rank_header, rank_rows, split_bar, split_line
from daisychain.tui.presentation.report import copy_text, ending, speedup_line
from daisychain.tui.presentation.run import (
    PHASE,
    counters_line,
    forecast_lines,
    lost_beforehand,
    new_log_lines,
    phase_text,
    progress_line,
    rates_line,
    run_title,
)
from daisychain.tui.presentation.verdicts import LEVEL, error_lines, verdict_lines
from daisychain.tui.presentation.worker import membership, own_run

__all__ = [
    "ALONE", "LEVEL", "PHASE", "advice_line", "border_name", "capacity_text", "chain_title", "copy_text",
    "counters_line", "device_text", "digits_text", "ending", "error_lines", "forecast_lines", "head_question",
    "head_row", "lines_text", "lost_beforehand", "membership", "new_log_lines", "no_heads", "node_detail",
    "node_header", "node_row", "node_state", "nothing_found", "own_run", "phase_text", "progress_line", "rank_header",
    "rank_rows", "rates_line", "request_question", "request_row", "run_title", "speedup_line", "split_bar",
    "split_line", "tally", "trying", "verdict_lines",
]  # fmt: skip
