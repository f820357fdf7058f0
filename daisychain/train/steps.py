"""One run's steps on one rank: weights, times, reports, and shares that follow the measurements. No torch."""

from collections.abc import Callable
from math import isfinite

from daisychain.train import reports
from daisychain.train.balance import Balancer, Schedule
from daisychain.train.batches import Piece
from daisychain.train.meter import Meter, Times


class Steps:
    """Follows the main loader's steps; the comm hook asks it for the weight of the moment."""

    def __init__(
        self,
        *,
        schedule: Schedule,
        meter: Meter,
        balancer: Balancer | None,
        lookahead: int,
        tell: reports.Tell,
        opening: Callable[[], reports.Report],
    ) -> None:
        """opening: builds the plan report, sent before the first step. lookahead: steps that are cut in advance."""
        self._schedule, self._meter, self._balancer = schedule, meter, balancer
        self._lookahead, self._tell, self._opening = lookahead, tell, opening
        self.finished = 0
        self._opened = False
        self._first = self._epoch = 0
        self._piece: Piece | None = None
        self._weighed: Piece | None = None
        self._loss: float | None = None
        self._logged: dict[str, float] = {}
        self._diverged = False

    # --- for the loader ----------------------------------------------------------------------------

    def shares_at(self, ahead: int) -> tuple[int, ...]:
        return self._schedule.at(self._first + ahead)

    def enter(self, epoch: int) -> None:
        if not self._opened:
            self._opened = True
            self._tell(self._opening())
        self._first, self._epoch = self.finished, epoch

    def begin(self) -> None:
        self._meter.begin()

    def take(self, piece: Piece) -> None:
        self._piece, self._loss, self._logged = piece, None, {}
        self.weigh(piece)

    def drop(self) -> None:
        self._meter.drop()

    def end(self) -> None:
        piece = self._piece
        if piece is None:
            return
        self._piece = None
        times = self._meter.end()
        self.finished += 1
        self._report(piece, times)
        if self._balancer is not None:
            change = self._balancer.observe(piece.shares, piece.batch, times.compute_s)
            if change is not None:
                shares, reason = change
                first = self.finished + self._lookahead
                self._schedule.change(first, shares)
                self._tell(reports.shares(first + 1, shares, reason))

    def _report(self, piece: Piece, times: Times) -> None:
        self._tell(
            reports.step(
                number=self.finished,
                epoch=self._epoch,
                batch=piece.batch,
                share=piece.share,
                shares=piece.shares,
                compute_ms=times.compute_s * 1000,
                exposed_ms=times.exposed_s * 1000,
                step_ms=times.step_s * 1000,
                loss=self._loss,
                logged=self._logged,
            )
        )

    @property
    def shares_now(self) -> tuple[int, ...]:
        """The shares of the step that comes next, or is being done."""
        return self._schedule.at(self.finished)

    # --- for the comm hook -------------------------------------------------------------------------

    @property
    def weight(self) -> float:
        """This rank's part of the newest batch. Before the first: all ranks alike."""
        if self._weighed is not None:
            return self._weighed.share / self._weighed.batch
        return 1 / len(self.shares_now)

    def weigh(self, piece: Piece) -> None:
        """Gradients from now on come from this piece."""
        self._weighed = piece

    def ready(self) -> None:
        self._meter.ready()

    def reduced(self) -> None:
        self._meter.reduced()

    # --- for the script ----------------------------------------------------------------------------

    def log(self, loss: float | None, more: dict[str, float]) -> None:
        """Values of the current step; a loss that isn't a number is reported as unknown, and said once."""
        if loss is not None and not isfinite(loss):
            if not self._diverged:
                self._diverged = True
                self._tell(reports.note(f"the loss is {loss} at step {self.finished + 1}: the training has diverged"))
            loss = None
        self._loss = loss if loss is not None else self._loss
        self._logged |= {name: value for name, value in more.items() if isfinite(value)}


class Uncounted:
    """For further loaders (a second dataset): cut by the shares that are valid when a pass begins, not measured."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._shares: tuple[int, ...] = ()

    def shares_at(self, ahead: int) -> tuple[int, ...]:
        return self._shares

    def enter(self, epoch: int) -> None:
        self._shares = self._steps.shares_now

    def begin(self) -> None:
        pass

    def take(self, piece: Piece) -> None:
        self._steps.weigh(piece)

    def end(self) -> None:
        pass

    def drop(self) -> None:
        pass
