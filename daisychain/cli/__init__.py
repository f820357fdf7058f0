"""The command line: argparse here, one module a group of commands beside it, imported when it runs.

Exit codes: 0 done, 1 failure, 2 usage, 3 no usable node, 4 preflight refused, 5 pairing refused, 6 the script
failed, 130 interrupted.
"""

import sys


def main(argv: "list[str] | None" = None) -> None:
    """The `daisychain` command. Never returns; a person never sees a traceback."""
    words = sys.argv[1:] if argv is None else argv
    if words in (["--version"], ["-V"]):
        # answered before anything else is imported: scripts ask this often
        from daisychain import __version__

        print(f"daisychain {__version__}")
        sys.exit(0)
    from daisychain.cli.parser import parse
    from daisychain.cli.surface import run_command

    sys.exit(run_command(parse(words)))
