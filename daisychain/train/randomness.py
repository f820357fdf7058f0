"""Dropout and other noise of a model that depend on a sample's position in the global batch, never on the shares.

While a prepared model's forward runs in training mode, a torch.overrides.TorchFunctionMode replaces torch's random
functions. Each call takes a key from torch's own generator, which a forward seeds from (run's seed, step, how many
forwards the step had before) and puts back afterwards. So all ranks take the same keys, and whatever puts torch's
generator back, as torch.utils.checkpoint does before it repeats a forward within backward, repeats the masks too.
There the functions are replaced within calls of the model's modules, so what is repeated should be modules.

The mode passes every torch function through Python. A model that drew nothing in its first forwards goes without it,
and is watched: once it draws after all, that is said, and the mode is on again from the next forward on.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from daisychain.train.draws import Draws, Tell, mix
from daisychain.train.place import Place
from daisychain.train.random_functions import replacements

QUIET = 3
"""Forwards without a draw, and a model is taken for one that draws nothing."""


def attach(model: nn.Module, place: Place, tell: Tell) -> None:
    """Key the randomness of every forward of the model in training mode. tell: what can't be keyed, once per kind."""
    _Around(_Noise(place, tell, model)).watch(model)


@contextmanager
def keyed(place: Place, tell: Tell = lambda _: None) -> Iterator[None]:
    """Key the randomness of one forward in training mode. All ranks must enter it alike.

    What a checkpoint within it repeats isn't keyed; `attach` is for models.
    """
    model = nn.Module()
    noise = _Noise(place, tell, model)
    noise.enter(model)
    try:
        yield
    finally:
        noise.leave()


def begin_attempt(place: Place) -> None:
    """A step begins, or begins again: its forwards count from 0."""
    _forwards[place] = (place.step, 0)


_forwards: "WeakKeyDictionary[Place, tuple[int, int]]" = WeakKeyDictionary()
"""The newest step, and how many forwards of it have begun."""


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() >= 0


class _Enterable(Protocol):
    def enter(self, module: nn.Module) -> bool:
        """A call of the module begins; whether it wants to know of its end."""

    def leave(self) -> None: ...


class _Around:
    """Hooks around modules' calls. Copies of a module have the same ones, pickled ones do nothing."""

    def __init__(self, what: _Enterable | None = None) -> None:
        self._what = what
        self._entered: list[bool] = []

    def watch(self, module: nn.Module) -> None:
        module.register_forward_pre_hook(self.before)
        module.register_forward_hook(self.after, always_call=True)

    def before(self, module: nn.Module, _: Any) -> None:
        self._entered.append(self._what is not None and self._what.enter(module))

    def after(self, *_: Any) -> None:
        if self._entered and self._entered.pop() and self._what is not None:
            self._what.leave()

    def __deepcopy__(self, _: Any) -> "_Around":
        return self

    def __reduce__(self) -> Any:
        return _Around, ()


class _Entered(NamedTuple):
    """One forward's beginning: torch's generator before it and as it began, and whether it has switched the mode on."""

    before: Tensor
    begun: Tensor
    outermost: bool
    watched: bool = False
    """It goes without the mode."""


class _Noise:
    """One model's random functions, replaced from `enter` to `leave`."""

    def __init__(self, place: Place, tell: Tell, model: nn.Module) -> None:
        self._place, self._mode = place, _Mode(place, tell, model)
        self._entered: list[_Entered] = []
        self._quiet = 0
        """Forwards in a row that drew nothing."""

    def enter(self, module: nn.Module) -> bool:
        if not module.training:
            return False
        place, number, before = self._place, self._number(), torch.get_rng_state()
        if self._quiet >= QUIET:
            self._entered.append(_Entered(before, before, outermost=False, watched=True))
            return True
        torch.default_generator.manual_seed(mix(place.seed, place.step, number))
        self._entered.append(_Entered(before, torch.get_rng_state(), outermost=not _Mode.is_active))
        if not _Mode.is_active:
            self._mode.switch(on=True)
        return True

    def _number(self) -> int:
        """Of this forward in the step. A checkpoint around the whole model repeats one, and doesn't say which."""
        step, count = _forwards.get(self._place, (self._place.step, 0))
        count = count if step == self._place.step else 0
        if count and _in_backward():
            if count > 1:
                self._mode.draws.tell("a checkpoint around the whole model, used more than once in a step,")
            return count - 1
        _forwards[self._place] = (self._place.step, count + 1)
        return count

    def leave(self) -> None:
        entered = self._entered.pop()
        if entered.outermost:
            self._mode.switch(on=False)
        drew = not torch.equal(torch.get_rng_state(), entered.begun)
        if entered.watched:
            if drew:
                self._mode.draws.tell("noise that begins after some steps, in its first forward,")
                self._quiet = 0
            return
        self._quiet = 0 if drew else self._quiet + 1
        torch.set_rng_state(entered.before)


class _Mode(TorchFunctionMode):
    """Replaces random functions while it is on."""

    is_active: ClassVar[bool] = False
    """One at a time: a prepared model may be part of another one."""

    def __init__(self, place: Place, tell: Tell, model: nn.Module) -> None:
        super().__init__()
        self.draws = Draws(place, tell, self)
        self._model: nn.Module | None = model
        self._grad = True

    def switch(self, *, on: bool) -> None:
        _Mode.is_active = on
        if on:
            self._grad = torch.is_grad_enabled()
            self.__enter__()  # type: ignore[no-untyped-call]
        else:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        replacement = replacements().get(func)
        if replacement is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        if self._model is not None and self._may_be_repeated():
            self._watch(self._model)
        return replacement(self.draws, func, args, kwargs or {})

    def _may_be_repeated(self) -> bool:
        """Within a checkpoint: a reentrant one begins without gradients, others hook what is saved for backward."""
        hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
        return hooks is not None or (self._grad and not torch.is_grad_enabled())

    def _watch(self, model: nn.Module) -> None:
        """From now on, look at every call of a module: in backward it is a repeated one.

        Not by one hook on the gradient: autograd gives each of its functions the modes that backward began with.
        """
        self._model = None
        around = _Around(_Repeated(self))
        for module in model.modules():
            if module is not model:
                around.watch(module)


class _Repeated:
    """A mode, on where backward repeats a module's call."""

    def __init__(self, mode: _Mode) -> None:
        self._mode = mode

    def enter(self, _: nn.Module) -> bool:
        if _Mode.is_active or not _in_backward():
            return False
        self._mode.switch(on=True)
        return True

    def leave(self) -> None:
        self._mode.switch(on=False)
