"""A head's part of a run from the first rank to the report. The decisions are in run/ and plan/."""

import asyncio
import base64
import contextlib
import logging
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from daisychain.agent import bundles, mesh, outlook
from daisychain.agent.chronicle import Chronicle
from daisychain.agent.launch import folder_name, run_name
from daisychain.agent.preflight import check
from daisychain.agent.preparation import Preparation
from daisychain.agent.seats import Seat, Side, named, speeds
from daisychain.config import Paths, Settings
from daisychain.errors import DaisyError, LinkError, PreflightError, UsageError
from daisychain.facts import Foretold, Node, RunSpec, RunState, Verdict
from daisychain.link.messages import EndRun, FetchBlob, OrderRank, StartRank
from daisychain.link.session import Session
from daisychain.plan.advice import Decision
from daisychain.plan.devices import devices, seat_names
from daisychain.run.failure import Failure, cause, from_exit, from_report
from daisychain.run.folder import OWN_FILES, RunFolder
from daisychain.run.generations import (
    NOBODY_LEFT,
    Action,
    Boundary,
    Break,
    Fail,
    Form,
    Generations,
    Hung,
    Leave,
    Start,
)
from daisychain.run.ledger import Applied
from daisychain.run.lifecycle import Tracker
from daisychain.run.motion import Motion

log = logging.getLogger(__name__)

MEASURING_PATIENCE_S = 45.0
TICK_S = 0.25
ORDER_TIMEOUT_S = 5.0
START_TIMEOUT_S = 30.0
FORMING_S = 8.0
"""How long ranks may take to connect before it is looked into."""
LEAVE_TIMEOUT_S = 5.0
"""How long finished ranks may take to end by themselves."""
ILLEGAL_INSTRUCTION = -4
END_TIMEOUT_S = 10.0


class Conductor:
    """One run from launch to report. `drive` never raises; what happened is in `state`."""

    def __init__(
        self,
        *,
        head: str,
        spec: RunSpec,
        paths: Paths,
        settings: Settings,
        clock: Callable[[], float],
        changed: Callable[[], None],
        warnings: Sequence[Verdict] = (),
    ) -> None:
        """warnings: what was found before the launch, to be told with the run."""
        resumed = spec.resume
        stamp = datetime.now(tz=timezone.utc).astimezone().strftime("%Y%m%d-%H%M%S")
        self.id = resumed or folder_name(spec, stamp)
        for attempt in range(2, 100):
            if resumed or not (paths.runs / self.id).exists():
                break
            self.id = f"{folder_name(spec, stamp)}-{attempt}"
        self.spec = spec
        self._head = head
        self._clock, self._changed = clock, changed
        try:
            self.folder = RunFolder(paths.runs / self.id, again=bool(resumed))
        except OSError as error:
            with named(head):
                raise bundles.explain(error, paths.runs) from error
        self.tracker = Tracker(run=self.id, name=run_name(spec), folder=str(self.folder.path), spec=spec, now_s=clock())
        self._told = Chronicle(self.tracker, self.folder, clock, changed)
        self._prepared = Preparation(self.id, spec, settings, self.folder, self._told, self._together)
        self._warnings = tuple(warnings)
        self._seats: list[Seat] = []
        self._started: set[int] = set()
        """Seats that have had a rank before."""
        self._recent: list[dict[str, Any]] = []
        """The ledger's last lines, from the newest checkpoint that a rank has read."""
        self._leaving: set[int] = set()
        self._generations = Generations(0)
        self._formed = 0
        """The newest generation of which a rank has said that it has formed."""
        self._gives_up = False
        """Generations fail to form, and it is found out why."""
        self._motion = Motion()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: list[Failure] = []
        self._over = asyncio.Event()
        self._stopped = False
        self._left_out: set[int] = set()
        """Seats that the run goes on without, though their ranks could."""
        self._refusal: PreflightError | None = None
        """Why the run isn't begun after its trial."""

    @property
    def active(self) -> bool:
        return not self.tracker.ended

    def state(self) -> RunState:
        return self.tracker.state(self._clock())

    @property
    def local_sources(self) -> Mapping[str, Path]:
        """This run's files on the head, by hash."""
        return self._prepared.sources

    @property
    def taking_part(self) -> tuple[Node, ...]:
        """Every node once."""
        return tuple(seat.node for seat in self._firsts)

    @property
    def _firsts(self) -> list[Seat]:
        """The first seat of every node."""
        return [seat for seat in self._seats if not seat.place]

    def node_of(self, seat: int) -> str:
        """The id of the node whose seat this is; empty for none."""
        return self._seats[seat].node.id if 0 <= seat < len(self._seats) else ""

    @property
    def shares(self) -> dict[str, int]:
        """Samples of each global batch that a node's ranks take together, by its id."""
        node_ids = {seat.name: seat.node.id for seat in self._seats}
        found: dict[str, int] = {}
        for part in self.state().nodes:
            if part.node in node_ids:
                found[node_ids[part.node]] = found.get(node_ids[part.node], 0) + part.share
        return found

    async def drive(self, nodes: Callable[[], Sequence[tuple[Node, Side]]]) -> None:
        """Run it. `nodes` gives them as they are now; they are taken once all are measured."""
        try:
            with named(self._head):
                await self._prepared.collect()
            for node, side in await self._all_measured(nodes):
                self._seat(node, side)
            for node in self.taking_part:
                if node.lent:
                    self._tell_lent(node)
            await self._launch()
            await self._keep_going()
        except _Over:
            pass
        except DaisyError as error:
            self._failures.append(_failure_of(error, self._clock()))
        except Exception as error:
            log.exception("run %s", self.id)
            self._failures.append(Failure(node="", origin="chain", message=f"inside the agent: {error}"))
        finally:
            await self._finish()

    # --- before the first step ---------------------------------------------------------------------

    def _seat(self, node: Node, side: Side) -> tuple[int, ...]:
        """Give every rank that a node is to have a seat; the new ones."""
        on = devices(node.device, self.spec.ranks or node.ranks)
        before = len(self._seats)
        self._seats += [Seat(name, node, side, on, place) for place, name in enumerate(seat_names(node.name, on))]
        self.tracker.seat([seat.name for seat in self._seats], [seat.node.name for seat in self._seats])
        for gpu in node.device.gpus:
            if gpu.verdict.level != "ok":
                self._told.note(f"{node.name}: {gpu.verdict.reason}. {gpu.verdict.remedy}".strip())
        return tuple(range(before, len(self._seats)))

    async def _all_measured(self, nodes: Callable[[], Sequence[tuple[Node, Side]]]) -> Sequence[tuple[Node, Side]]:
        until = self._clock() + MEASURING_PATIENCE_S
        while True:
            now = nodes()
            slow = [node.name for node, _ in now if node.state == "measuring"]
            if not slow or self._clock() > until:
                return now
            self._told.tell(f"waiting for {', '.join(slow)}: measuring its speed")
            await self._pause(0.3)

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not through the run's end."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)
            raise _Over

    async def _launch(self) -> None:
        await self._prepared.prepare(self._firsts, self._warnings)
        self._told.enter("starting", f"{len(self._seats)} ranks load torch")
        self._generations = Generations(len(self._seats))
        self._generations.paused = self.tracker.paused
        for number, seat in enumerate(self._seats):
            self._generations.lend(number, seat.node.lent)

    async def _together(self, parts: Sequence[Any]) -> list[Any]:
        """Await all; the first error ends the others, and so does the run's end (raises _Over)."""
        tasks = [asyncio.ensure_future(part) for part in parts]
        stop = asyncio.ensure_future(self._over.wait())
        try:
            waiting: set[asyncio.Future[Any]] = set(tasks)
            while waiting:
                done, _ = await asyncio.wait({*waiting, stop}, return_when=asyncio.FIRST_COMPLETED)
                waiting -= done
                for task in done - {stop}:
                    task.result()
                if stop in done:
                    raise _Over
            return [task.result() for task in tasks]
        finally:
            for task in (*tasks, stop):
                task.cancel()
            await asyncio.gather(*tasks, stop, return_exceptions=True)

    async def _judge_trial(self, trial: dict[str, Any]) -> None:
        """Forecast the run from what its ranks have found out, and begin it, without some nodes, or not at all."""
        members = self._generations.members
        try:
            if why := str(trial["why"]):
                self._told.note(f"no forecast of this run: {why}")
            elif any(len(self._seats_of(self._seats[seat].node)) > 1 for seat in members):
                self._told.note("no forecast of this run: a node has several ranks")
            else:
                self._told.event("trial", **{k: v for k, v in trial.items() if k != "kind"})
                if short := outlook.told_of_memory(trial, self.tracker.batch):
                    self._told.note(short)
                names = [self._seats[seat].name for seat in members]
                asked = outlook.question(
                    trial,
                    names,
                    self._prepared.network,
                    batch=self.tracker.batch,
                    sync=self.spec.sync,
                    steps=self.tracker.steps,
                )
                # for comparing, or to show what happens, also where a chain gains nothing
                shown = self.spec.equal or self.spec.job == "demo"
                choice = {"auto": self.spec.auto, "anyway": self.spec.anyway or shown}
                foretold, decision = await asyncio.to_thread(partial(outlook.foretell, asked, **choice))
                self._take_forecast(foretold, decision)
        except (ArithmeticError, KeyError, TypeError, ValueError, DaisyError) as error:
            log.warning("no forecast of %s", self.id, exc_info=error)
            self._told.note(f"no forecast of this run: {error}")
        if self._refusal is None:
            self._order(self._generations.members, {"kind": "go"})

    def _take_forecast(self, foretold: Foretold, decision: Decision) -> None:
        self.tracker.foretold = foretold
        self._told.event("forecast", **msgspec.to_builtins(foretold))
        self._told.note(f"forecast: {foretold.text}")
        if decision.refusal is not None:
            verdict = decision.refusal
            self._told.event("refused", verdicts=msgspec.to_builtins([verdict]))
            self._refusal = PreflightError([verdict])
            self._over.set()
        for number, seat in enumerate(self._seats):
            if seat.name in decision.left_out:
                self._left_out.add(number)
                self._generations.leave_out(number, f"the run is forecast to be faster without {seat.name}")
                self._order((number,), {"kind": "stop"})
        self.tracker.left_out = decision.left_out
        self._act()

    # --- generations ---------------------------------------------------------------------------------

    async def _keep_going(self) -> None:
        """Do what the generations ask for, until the run is over."""
        while not self._over.is_set():
            self._act()
            self._look_at_steps()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._over.wait(), TICK_S)
        if self._refusal is not None:
            raise self._refusal

    def _act(self) -> None:
        self._generations.step_s = (self.tracker.step_ms or 0.0) / 1000
        for action in self._generations.decide(self._clock()):
            self._perform(action)

    def _perform(self, action: Action) -> None:
        match action:
            case Start(seat):
                self._spawn(self._start(seat))
            case Break(seats, generation):
                self._order(seats, {"kind": "break", "generation": generation})
            case Boundary(seats, generation):
                self._order(seats, {"kind": "boundary", "generation": generation})
            case Form():
                self._form(action)
            case Leave(seats):
                self._leaving = set(seats)
                self._order(seats, {"kind": "leave"})
                asyncio.get_running_loop().call_later(LEAVE_TIMEOUT_S, self._over.set)
            case Hung(seat):
                self._told.note(
                    f"{self._seats[seat].name} doesn't let go of the last step; where it stands is in its log"
                )
                self._order((seat,), {"kind": "trace"})
            case Fail(why) if not self._failures and why != NOBODY_LEFT:
                if not self._gives_up:
                    self._gives_up = True
                    self._spawn(self._explain_silence())
            case Fail(why):
                if not self._failures:
                    self._failures.append(Failure(node="", origin="chain", message=why, at_s=self._clock()))
                self._over.set()

    def _form(self, form: Form) -> None:
        seats = [self._seats[seat] for seat in form.seats]
        seen = self.tracker.step
        for line in self.tracker.form(form.generation, form.seats, form.completed):
            self.folder.metric(line)
            seen = line["step"]
        if form.completed != seen:
            self._jump(form.completed)
        names = [seat.name for seat in seats]
        self._told.event("generation", number=form.generation, nodes=names, completed=form.completed)
        if form.generation > 1:
            self._told.note(f"going on after step {form.completed} with {', '.join(names)}")
        formation = {
            "generation": form.generation,
            "names": names,
            "speeds": speeds(seats),
            "address": seats[0].node.address,
            "port": self._generations.seats[form.seats[0]].port,
        }
        for rank, seat in enumerate(form.seats):
            self._order((seat,), {"kind": "form", "formation": {**formation, "rank": rank}})
        asyncio.get_running_loop().call_later(FORMING_S, self._look_at_forming, form.generation)

    def _look_at_forming(self, generation: int) -> None:
        if self._formed < generation == self._generations.generation and not self._over.is_set():
            self._spawn(self._explain_silence())

    def _look_at_steps(self) -> None:
        """Look into it when the run moves no more."""
        alone = len(self._generations.members) < 2
        rests = alone or self.tracker.paused or self._formed != self._generations.generation
        stands, step_s = (self._formed, self.tracker.step), self._generations.step_s
        if self._motion.is_stalled(stands, self._clock(), rests=rests, step_s=step_s):
            self._spawn(self._explain_silence())

    async def _explain_silence(self) -> None:
        """Say which nodes can't connect, and go on without one that could before, or end the run.

        Where none of them ever could, or it was tried often enough, nobody knows whom to go on without.
        """
        generation, members = self._generations.generation, self._generations.members
        firsts: dict[str, Seat] = {}
        for seat in members:
            firsts.setdefault(self._seats[seat].node.id, self._seats[seat])
        try:
            found = await mesh.explain([*firsts.values()], self.id, self._together)
            if found.apart is not None:  # beside what the run itself sends, a try may fail by chance
                found = await mesh.explain([*firsts.values()], self.id, self._together)
        except _Over:
            return
        if generation != self._generations.generation or (found.apart is None and self._formed == generation):
            # it has sorted itself out meanwhile, or a step simply takes long
            return
        self._told.note(found.text)
        connected = any(self._generations.seats[seat].proven for seat in members)
        if found.apart is not None and connected and not self._gives_up:
            for seat in self._seats_of(found.apart.node):
                self._left_out.add(seat)
                self._generations.leave_out(seat, found.message)
                self._order((seat,), {"kind": "stop"})
            self._told.event("left_out", node=found.apart.node.name, why=found.message)
            self._told.note(f"going on without {found.apart.node.name}")
            self._act()
        elif found.apart is not None or self._gives_up:
            log_path = self._log_path(members[0])
            failure = Failure(node="", origin="chain", message=found.message, remedy=found.remedy, log_path=log_path)
            self._fail(msgspec.structs.replace(failure, at_s=self._clock()))
            self._over.set()

    def _jump(self, completed: int) -> None:
        """The run goes on from another step than the last one seen; the ledger is made to say so."""
        lines = [Applied(**{**line, "digest": int(line["digest"])}) for line in self._recent]
        self.folder.ledger.catch_up(lines, completed)
        self._told.note(f"going on from a saved state, after step {completed}")

    def _order(self, seats: Sequence[int], order: dict[str, Any]) -> None:
        for seat in seats:
            self._spawn(self._deliver(seat, order))

    async def _deliver(self, seat: int, order: dict[str, Any]) -> None:
        """An order that doesn't arrive was for a node that is lost, which is noticed by its heartbeats."""
        place = self._seats[seat]
        try:
            await place.side.ask(OrderRank(run=self.id, seat=seat, order=order), ORDER_TIMEOUT_S)
        except DaisyError as error:
            log.info("%s didn't get %s: %s", place.name, order["kind"], error)

    async def _start(self, seat: int) -> None:
        place = self._seats[seat]
        spec, again = self.spec, seat in self._started
        message = StartRank(
            run=self.id,
            seat=seat,
            names=tuple(each.name for each in self._seats),
            devices=place.devices,
            place=place.place,
            script=self._prepared.script,
            args=spec.args,
            settings={
                "seed": spec.seed, "batch": spec.batch, "epochs": spec.epochs, "sync": spec.sync, "equal": spec.equal,
                "micro": spec.micro, "trial": len(self._seats) > 1 and not spec.resume,
            },
            resume=again or bool(spec.resume),
        )  # fmt: skip
        self._started.add(seat)
        try:
            await self._prepared.lay_out(place)
            with named(place.name):
                await place.side.ask(message, START_TIMEOUT_S)
        except DaisyError as error:
            if not again:
                self._fail(_failure_of(error, self._clock()))
            self._generations.exited(seat, self._clock(), error.what, hopeless=False)
            self._told.note(f"{place.name} can't take part: {error.what}")

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def back(self, node: Node, side: Side, alive: Collection[int]) -> None:
        """A node has connected (again). alive: the seats whose ranks of this run still wait there."""
        seats = self._seats_of(node)
        if not seats or not self._generations.seats:
            self.news(node, side)
            return
        if not alive:
            self._prepared.forget(node.id)
        for seat in seats:
            self._seats[seat] = self._seats[seat]._replace(node=node, side=side)
            # a new connection may come before the end of the old one is noticed
            self._generations.lost(seat, self._clock())
            self._generations.back(seat, seat in alive)
        self._told.note(f"{node.name} is back")
        self._act()

    def news(self, node: Node, side: Side) -> None:
        """A node's record has changed; one that wasn't there at the launch takes part once it is ready."""
        if not self._seats_of(node) and self._takes(node):
            for seat in self._seat(node, side):
                self._generations.add()
                self._generations.lend(seat, node.lent)
            self._told.note(f"{node.name} is new and takes part")
            if node.lent:
                self._tell_lent(node)
            self._act()

    def _seats_of(self, node: Node) -> list[int]:
        return [number for number, seat in enumerate(self._seats) if seat.node.id == node.id]

    def _takes(self, node: Node) -> bool:
        """Whether a node that wasn't there at the launch may join in."""
        anybody = not (self.spec.nodes or self.spec.auto) and bool(self._generations.seats) and node.state == "ready"
        return anybody and not any(v.level == "refuse" for v in check([*self.taking_part, node]))

    # --- what comes in while it runs -----------------------------------------------------------------

    def shipped(self, node: str, have: int, total: int) -> None:
        detail = self._prepared.shipped(node, have, total)
        if self.tracker.phase == "shipping":
            self._told.tell(detail)

    async def serve_blob(self, session: Session, number: int, message: FetchBlob) -> None:
        """Send a file of this run from an offset on. Raises DataError for one that isn't of this run."""
        await self._prepared.serve_blob(session, number, message)

    async def report(self, seat: int, report: dict[str, Any]) -> None:
        """One line of a rank, or its exit."""
        if self.tracker.ended or not 0 <= seat < len(self._generations.seats):
            return
        try:
            self._take(seat, report)
            if not self._over.is_set():
                self._act()
        except OSError as error:
            said = bundles.explain(error, self.folder.path)
            self._fail(Failure(node="", origin="chain", message=said.what, remedy=said.remedy, at_s=self._clock()))
            self._over.set()
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            log.warning("seat %d sent a wrong %r report: %r", seat, report.get("kind"), error)
        self._changed()

    def _take(self, seat: int, report: dict[str, Any]) -> None:
        name, generations = self._seats[seat].name, self._generations
        now = self._clock() - float(report.get("ago_ms", 0.0)) / 1000
        match report.get("kind"):
            case "steps":
                for step in report["steps"]:
                    self._take(seat, step)
            case "waiting":
                facts = {name: int(report[name]) for name in ("port", "generation", "completed")}
                why = str(report["why"])
                generations.waiting(seat, **facts, why=why)
                if report.get("over"):
                    generations.done(seat)
                self._recent = max(self._recent, report.get("recent", []), key=lambda r: r[-1]["step"] if r else 0)
                self._told.event("waiting", node=name, **facts, why=why)
            case "joined":
                generations.joined(seat, int(report["generation"]))
                self._formed = max(self._formed, int(report["generation"]))
            case "silent":
                generations.frozen(seat, now)
                self._told.note(f"{name} is frozen: its rank says nothing any more")
            case "heard":
                generations.thawed(seat)
            case "done":
                generations.done(seat)
            case "exit":
                self._exited(seat, int(report["code"]), report.get("peak_bytes"), report.get("oom"))
            case "error":
                self._fail(from_report(name, report, self._log_path(seat), now))
            case "trial" if seat in generations.members[:1]:
                self._spawn(self._judge_trial(report))
            case "knobs":
                self.folder.knobs(name, report)
            case "output":
                self._keep(str(report["path"]), int(report.get("offset", 0)), base64.b64decode(report["data"]))
            case kind:
                line = self.tracker.report(seat, report, now)
                if line is not None:
                    self.folder.metric(line)
                elif kind in ("plan", "scores", "shares") and seat in (self._generations.members[:1] or (seat,)):
                    self._told.event(str(kind), **{k: v for k, v in report.items() if k != "kind"})

    def _keep(self, name: str, offset: int, piece: bytes) -> None:
        """A piece of a file that rank 0 left; it can't touch what the run itself writes.

        The first piece begins the file anew: a node that was cut off may send it again.
        """
        folder = self.folder.path.resolve()
        target = (folder / name).resolve()
        if not target.is_relative_to(folder) or target == folder or target.name in OWN_FILES:
            log.warning("rank 0 left %r, which can't be kept", name)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("ab" if offset else "wb") as stream:
            stream.write(piece)

    def _exited(self, seat: int, code: int, peak_bytes: int | None, oom: bool | None) -> None:
        name, now = self._seats[seat].name, self._clock()
        place = self._generations.seats[seat]
        if seat in self._left_out:
            self._generations.exited(seat, now)
            return
        if place.done or self._generations.finished:
            if code:
                self._told.note(f"{name}: its rank ended with exit code {code} after its work")
            self._generations.exited(seat, now)
            self._leaving.discard(seat)
            if self._generations.finished and not self._leaving:
                self._over.set()
            return
        told = [failure for failure in self._failures if failure.node == name]
        lacks = self._seats[seat].node.device.cpu_lacks
        failure = told[-1] if told else from_exit(name, code, self._log_path(seat), now, lacks, peak_bytes, oom)
        if not told:
            self._failures.append(failure)
        self._generations.exited(seat, now, failure.message, hopeless=code == ILLEGAL_INSTRUCTION)
        self._told.note(f"{failure.text}{'; it is left out' if place.given_up else ''}")

    def lost(self, node: Node, why: str) -> None:
        """A node of this run can't be reached any more."""
        seats = self._seats_of(node)
        if not seats or not self.active:
            return
        if not self._generations.seats:
            remedy = "Check its power, cable and agent, then launch again"
            failure = Failure(node=node.name, origin="lost", message=why, remedy=remedy, at_s=self._clock())
            self._failures.append(failure)
            self._over.set()
            return
        for seat in seats:
            self._generations.lost(seat, self._clock())
        self._told.note(f"{node.name} is lost: {why}")
        self._act()

    def pause(self, paused: bool) -> None:
        """Do no step from now on until it is resumed; the ranks wait."""
        if paused == self.tracker.paused:
            return
        self.tracker.pause(paused, self._clock())
        self._generations.paused = paused
        self._told.event("paused" if paused else "resumed")
        self._told.note("paused by its user" if paused else "resumed")
        self._act_if_going()

    def lend(self, node: Node) -> None:
        """A node's record is here: its owner may have taken it out, or given it back."""
        seats = [seat for seat in self._seats_of(node) if self._seats[seat].node.lent != node.lent]
        for seat in seats:
            known = msgspec.structs.replace(self._seats[seat].node, lent=node.lent)
            self._seats[seat] = self._seats[seat]._replace(node=known)
            if self._generations.seats:
                self._generations.lend(seat, node.lent)
        if seats:
            self._tell_lent(self._seats[seats[0]].node)
            self._act_if_going()

    def _tell_lent(self, node: Node) -> None:
        for seat in self._seats_of(node):
            self.tracker.lend(self._seats[seat].name, node.lent)
        self._told.event("lent" if node.lent else "given_back", node=node.name)
        self._told.note(
            f"{node.name}: its owner {'uses it; the others go on without it' if node.lent else 'gives it back'}"
        )

    def _act_if_going(self) -> None:
        if self._generations.seats and self.active and not self._over.is_set():
            self._act()
        self._changed()

    def stop(self) -> None:
        """End it on every node."""
        self._stopped = True
        self._over.set()

    def _fail(self, failure: Failure) -> None:
        """The script's own failure ends the run; any other is one node's, and the others go on."""
        self._failures.append(failure)
        if failure.origin == "script":
            self._over.set()

    # --- the end -------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        # what ranks die of while they are being ended explains nothing
        whole = self._generations.finished and not self._stopped
        failures = () if whole else tuple(self._failures)
        self._told.enter("finishing", "ending the ranks")
        message = EndRun(run=self.id, reason="finished" if whole else "ended")
        await asyncio.gather(*(seat.side.ask(message, END_TIMEOUT_S) for seat in self._firsts), return_exceptions=True)
        now = self._clock()
        if self._stopped:
            self.tracker.end("stopped", 130, now, "stopped by its user")
        elif failures:
            first = cause(failures)
            self.tracker.end("failed", first.exit_code, now, first.text, first.log_path)
        else:
            self.tracker.end("finished", 0, now)
        if self.tracker.samples and self.tracker.step:
            facts = self.tracker.samples, self.tracker.drop_last, self.tracker.batch
            # as long as the run was: not on the event loop
            proof = await asyncio.to_thread(self.folder.proof, *facts)
            self.tracker.ledger = proof.reason if proof.level == "ok" else f"not proven: {proof.reason}"
            self._told.note(f"ledger: {self.tracker.ledger}")
        state = self.state()
        self._told.note(state.error or f"finished: {state.step} steps")
        try:
            await asyncio.to_thread(shutil.rmtree, self.folder.path / "data", ignore_errors=True)
            self._told.event(state.phase, exit=state.exit, error=state.error)
            self.folder.finish(self.state(), self.tracker.node_speeds, self.tracker.added)
        except OSError as error:
            log.error("can't write the report of %s: %s", self.id, error)
        self._changed()

    def _log_path(self, seat: int) -> str:
        here = f"rank-{seat}.log"
        own = self._seats[seat].node.id == self._seats[0].node.id
        return str(self.folder.path / here) if own else f"{self._seats[seat].node.name}: runs/{self.id}/{here}"


class _Over(Exception):
    """The run is over before it began: it was stopped, or what failed is in its failures already."""


def _failure_of(error: DaisyError, now_s: float) -> Failure:
    origin = "lost" if isinstance(error, LinkError) else "script" if isinstance(error, UsageError) else "chain"
    return Failure(
        node="", origin=origin, message=error.what, remedy=error.remedy, exit_code=error.exit_code, at_s=now_s
    )
