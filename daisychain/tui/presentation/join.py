"""Joining: what the head's person sees of a worker, and the worker's of a head."""

from daisychain.facts import FoundHead, JoinRequest, Verdict
from daisychain.tui.presentation.lines import fit_line
from daisychain.tui.presentation.verdicts import verdict_lines
from daisychain.tui.text import ColourRole, Line, clean, fit

HEAD_STATE: dict[str, tuple[str, str, ColourRole]] = {
    "contacting": ("◌", "contacting", "accent"),
    "ready": ("●", "ready", "ok"),
    "confirmed": ("◌", "waiting for the head", "accent"),
    "joined": ("✓", "joined", "ok"),
    "refused": ("✗", "refused", "bad"),
}


def digits_text(digits: str) -> str:
    """'123 456', or dashes while the digits aren't known."""
    kept = clean(digits, 6)
    return f"{kept[:3]} {kept[3:]}" if kept else "––– –––"  # noqa: RUF001


def request_row(request: JoinRequest, cells: int) -> Line:
    """One waiting worker: name, digits, whether its user has pressed j."""
    said: Line = (("✓ pressed j there", "ok"),) if request.confirmed else (("◌ j not yet pressed there", "accent"),)
    name_cells = min(24, max(8, cells - 7 - 26 - 4 - 17))
    where_cells = max(0, cells - name_cells - 7 - 26 - 6)
    where = clean(request.address)
    if request.device and len(where) + 3 + len(clean(request.device)) <= where_cells:
        where += f" · {clean(request.device)}"
    return (
        (fit(clean(request.name), name_cells), "bold"), ("  ", ""), (digits_text(request.digits), "accent"), ("  ", ""),
        *fit_line(said, 26), ("  ", ""), (fit(where, where_cells), "dim"),
    )  # fmt: skip


def request_question(request: JoinRequest | None, count: int) -> tuple[Line, ...]:
    """What the cluster screen asks about the selected request."""
    if request is None:
        return ((("Choose one with the arrow keys.", ""),),) if count else ()
    return (
        (("Does ", ""), (clean(request.name, 40), "bold"), (" show these digits too?", "")),
        (("a", "accent"), ("  yes, accept it      ", ""), ("x", "accent"), ("  no, decline it", "")),
        (("Other digits: somebody is in between; decline.", "dim"),),
    )


def head_row(head: FoundHead, cells: int) -> Line:
    """One head that was found: name, address, digits, state."""
    sign, word, role = HEAD_STATE[head.state]
    name_cells = min(24, max(8, cells - 7 - 22 - 23 - 6))
    return (
        (fit(clean(head.name), name_cells), "bold"), ("  ", ""), (fit(f"{clean(head.address)}:{head.port}", 22), "dim"),
        ("  ", ""), (digits_text(head.digits), "accent"), ("  ", ""), (fit(f"{sign} {word}", 23), role),
    )  # fmt: skip


def head_question(head: FoundHead | None, count: int) -> tuple[Line, ...]:
    """What the join screen asks of the person about the selected head."""
    if head is None:
        return ((("Choose a head with the arrow keys.", ""),),) if count else ()
    name = clean(head.name)
    if head.state == "contacting":
        return (((f"Contacting {name} …", "dim"),),)
    if head.state == "refused":
        return ((("✗ ", "bad"), (f"{name} said no: {clean(head.reason, 400) or 'no reason given'}", "")),)
    if head.state == "confirmed":
        return (
            ((f"You said yes. Now press a on {name}.", "bold"),),
            (("Nothing more to do on this machine.", "dim"),),
        )
    if head.state == "joined":
        return ((("✓ ", "ok"), (f"This machine belongs to {name}.", "")),)
    return (
        (("Does ", ""), (name, "bold"), (" show these digits too?", "")),
        (("j", "accent"), (f"  yes, join {name}", "")),
        (
            ("! ", "warn"),
            (f"{name} may then run programs on this machine. Join only a head whose owner you know; ", ""),
            ("if the digits differ, leave.", ""),
        ),
    )


def no_heads(discovery: Verdict | None, waited: bool) -> tuple[Line, ...]:
    """The join screen without a head: searching, and after a while why there may be none."""
    if discovery is not None and discovery.level != "ok":
        return (*verdict_lines(discovery), (), (("e", "accent"), ("  type the head's address", "")))
    if not waited:
        return (
            (("◌ ", "accent"), ("Looking for heads on this network …", "")),
            (("  On the head, run  ", "dim"), ("daisychain", "accent"), (" .", "dim")),
        )
    return (
        (("! ", "warn"), ("No head has been heard on this network.", "bold")),
        (),
        (("  · Is ", ""), ("daisychain", "accent"), (" open on the head?", "")),
        (("  · Many guest, office and mesh Wi-Fis block multicast, and", ""),),
        (("    VPNs and VLANs don't carry it. Then no head is ever heard.", ""),),
        (),
        (("e", "accent"), ("  type the head's address; it stands on the head's screen", "")),
    )
