"""A worker that joined: whose it is, and its own part of the run."""

from daisychain.facts import ENDED, Snapshot
from daisychain.tui.presentation.run import counters_line, progress_line, rates_line, run_title
from daisychain.tui.text import Line, clean


def membership(snapshot: Snapshot) -> tuple[Line, ...]:
    """What a worker that joined says of itself."""
    name = clean(snapshot.joined)
    if not snapshot.connected:
        return (
            (("Member of ", ""), (name, "bold"), ("   ", ""), ("✗ not connected", "bad")),
            ((f"Trying to reach {name} again; is it on, and in the same network?", "dim"),),
        )
    connected: Line = (("Member of ", ""), (name, "bold"), ("   ", ""), ("● connected", "ok"))
    if any(node.lent for node in snapshot.nodes if node.id == snapshot.self_id):
        return (
            connected,
            (("‖ in use", "warn"), (" by you: it takes no part in runs until you give it back.", "")),
        )
    return (
        connected,
        (("This machine computes when the head starts a run. Leave it on; closing this screen is fine.", "dim"),),
    )


def own_run(snapshot: Snapshot, cells: int) -> tuple[Line, ...]:
    """A worker's view of the run: how far, and its own part."""
    run = snapshot.run
    if run is None:
        return ()
    own = next((node for node in snapshot.nodes if node.id == snapshot.self_id), None)
    lines: list[Line] = [run_title(run), progress_line(run, cells), counters_line(run), rates_line(run)]
    share = own.share if own else None
    if share is not None:
        of = f" of {run.batch}" if run.batch else ""
        lines.append((("this machine's share ", "dim"), (f"{share}{of}", "bold"), (" samples a step", "dim")))
    if run.detail and run.phase not in ENDED:
        lines.append(((clean(run.detail, 300), ""),))
    if run.error:
        lines.append((("✗ ", "bad"), (clean(run.error, 400), "")))
    return tuple(lines)
