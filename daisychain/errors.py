"""Every error that a person may see.

    DaisyError                    exit 1
    ├── UsageError                exit 2   what was typed or given can't be right
    │   ├── ConfigError                    a configuration file
    │   └── DataError                      a data file: missing, empty, unreadable, wrong column
    ├── NoNodeError               exit 3   no usable node
    ├── PreflightError            exit 4   something would go wrong; carries verdicts
    ├── TrustError                exit 5   a token, a pairing, an identity
    ├── ScriptError               exit 6   the user's script failed
    └── LinkError                 exit 1   a peer or the local agent can't be reached

Each says what happened, to whom or where, and what to try. `str(error)` is one line.
"""

import re
from collections.abc import Sequence

from daisychain.facts import Verdict

INTERRUPTED = 130


def about(verdict: Verdict) -> str:
    """A verdict's reason, with its node in front where it doesn't name that itself."""
    # as a word: a folder of that name, or a longer name, is another thing
    names_it = re.search(rf"(?<![\w/\\.-]){re.escape(verdict.node)}(?![\w/\\-])", verdict.reason)
    return verdict.reason if names_it or not verdict.node else f"{verdict.node}: {verdict.reason}"


class DaisyError(Exception):
    """What happened and what to try.

    what: one sentence, no final full stop, naming the node, file or key.
    remedy: what to try, one sentence; may be empty.
    """

    exit_code = 1

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}. {self.remedy}" if self.remedy else self.what


class UsageError(DaisyError):
    exit_code = 2


class ConfigError(UsageError):
    pass


class DataError(UsageError):
    pass


class NoNodeError(DaisyError):
    exit_code = 3


class PreflightError(DaisyError):
    exit_code = 4

    def __init__(self, verdicts: Sequence[Verdict]) -> None:
        worst = next((v for v in verdicts if v.level == "refuse"), verdicts[0])
        super().__init__(about(worst), worst.remedy)
        self.verdicts = tuple(verdicts)


class TrustError(DaisyError):
    exit_code = 5


class ScriptError(DaisyError):
    exit_code = 6


class LinkError(DaisyError):
    pass


BY_EXIT_CODE: dict[int, type[DaisyError]] = {
    1: DaisyError,
    2: UsageError,
    3: NoNodeError,
    5: TrustError,
    6: ScriptError,
}
"""For turning a refusal that came over the link into the error it was; a PreflightError needs verdicts."""
