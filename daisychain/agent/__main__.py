"""`python -m daisychain.agent`: the agent's process. Commands start it; people need not."""

import argparse
import asyncio
import contextlib
import logging
import logging.handlers
import shutil
import signal
import sys

from daisychain.agent.service import Agent
from daisychain.config import Paths, Settings, load, locate
from daisychain.errors import DaisyError
from daisychain.link.client import as_log_line

LOG_BYTES = 4_000_000


def main() -> int:
    """Run until nobody needs it. When it can't start: the error's exit code, and what link.client reads in the log."""
    parser = argparse.ArgumentParser(prog="daisychain.agent")
    parser.add_argument("--tied", action="store_true", help="end when standard input ends, and not by itself")
    parser.add_argument("--port", type=int)
    parser.add_argument("--nic")
    words = parser.parse_args()
    paths = locate()
    _log_to_file(paths)
    try:
        settings = load(paths, flags={"port": words.port, "nic": words.nic})
        asyncio.run(_serve(paths, settings, words.tied))
    except DaisyError as error:
        logging.critical("%s", error)
        logging.info("%s", as_log_line(error))
        return error.exit_code
    return 0


async def _serve(paths: Paths, settings: Settings, tied: bool) -> None:
    agent = Agent(paths, settings, tied)
    loop = asyncio.get_running_loop()
    for name in ("SIGTERM", "SIGINT"):
        with contextlib.suppress(NotImplementedError, AttributeError):
            loop.add_signal_handler(getattr(signal, name), agent.quit)
    if tied:
        watch = asyncio.ensure_future(asyncio.to_thread(sys.stdin.buffer.read))
        watch.add_done_callback(lambda _: agent.quit())
    await agent.start()
    # what an agent that was killed left of its runs; its ranks died with it
    await asyncio.to_thread(shutil.rmtree, paths.work, ignore_errors=True)
    try:
        await agent.wait()
    finally:
        await agent.close()


def _log_to_file(paths: Paths) -> None:
    paths.state.mkdir(parents=True, exist_ok=True)
    handler = logging.handlers.RotatingFileHandler(paths.agent_log, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.addLevelName(logging.CRITICAL, "FATAL")
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("websockets").setLevel(logging.ERROR)


if __name__ == "__main__":
    sys.exit(main())
