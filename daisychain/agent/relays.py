"""Whether Tailscale relays what the nodes of a run send each other: each is asked what its own Tailscale says of it."""

from collections.abc import Mapping, Sequence

from daisychain.agent.seats import Seat, Together, ask
from daisychain.discovery import tailscale
from daisychain.errors import DaisyError
from daisychain.facts import Verdict
from daisychain.link.messages import FindRelays, RelaysFound


async def find(message: FindRelays) -> RelaysFound:
    """On a node: through what its packets to these addresses go, where that isn't directly."""
    command = tailscale.program()
    relays = {peer.address: peer.relay for peer in (await tailscale.read_peers(command) if command else ())}
    return RelaysFound(relays=tuple(relays.get(address, "") for address in message.addresses))


async def judge(seats: Sequence[Seat], bytes_per_s: Mapping[str, float], together: Together) -> tuple[Verdict, ...]:
    """A warning for each pair of nodes whose way is relayed, once for both directions.

    seats: one of each node. bytes_per_s: what gets through from each, by its node's name, where that was measured.
    To be asked after the measuring: Tailscale only knows ways that are in use.
    """
    over = [seat for seat in seats if seat.node.interface is not None and seat.node.interface.kind == "tailscale"]
    if len(over) < 2:
        return ()
    addresses = tuple(seat.node.address for seat in over)
    answers = await together([_relays(seat, addresses) for seat in over])
    relayed: dict[frozenset[int], tuple[int, int, str]] = {}
    for start, relays in enumerate(answers):
        for end, relay in enumerate(relays):
            if relay and start != end:
                relayed.setdefault(frozenset((start, end)), (start, end, relay))
    return tuple(_slow(over[start], over[end], relay, bytes_per_s) for start, end, relay in relayed.values())


async def _relays(seat: Seat, addresses: tuple[str, ...]) -> tuple[str, ...]:
    """A node that can't say has none: no run fails for want of a warning."""
    try:
        answer = await ask(seat, FindRelays(addresses=addresses))
    except DaisyError:
        return ()
    return answer.relays if isinstance(answer, RelaysFound) else ()


def _slow(start: Seat, end: Seat, relay: str, bytes_per_s: Mapping[str, float]) -> Verdict:
    rate = bytes_per_s.get(start.node.name)
    speed = "its speed is unknown" if rate is None else f"{start.node.name} gets {rate * 8 / 1e6:.1f} Mbit/s through"
    reason = f"Tailscale relays between {start.node.name} and {end.node.name}, through {relay}: {speed}"
    remedy = (
        f"Put both into one network, or let UDP port 41641 into one of them; tailscale ping {end.node.address} "
        f"on {start.node.name} says once the way is direct"
    )
    return Verdict(level="warn", check="relay", reason=reason, remedy=remedy, node=start.node.name)
