"""What a training script can't have made exact, told before the run by line: pure, on the syntax tree alone.

Only the script itself is read, not what it imports, and nothing is run. A name counts as torch's only if an import in
the script says so, and a value only if the script shows it: what can't be told here is left to the checks at run time.
"""

import ast
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from daisychain.facts import Level, Verdict
from daisychain.plan.source import (
    NO_GRADIENT,
    Function,
    Source,
    argument,
    guards,
    is_data,
    is_module,
    is_none,
    methods,
)

ITERABLE = {"IterableDataset", "IterDataPipe", "ChainDataset"}
GROUP_CALLS = {
    "init_process_group", "destroy_process_group", "new_group", "all_reduce", "all_gather", "all_gather_object",
    "all_gather_into_tensor", "all_to_all", "all_to_all_single", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "broadcast", "broadcast_object_list", "gather", "gather_object", "scatter", "scatter_object_list", "barrier",
    "monitored_barrier", "send", "recv", "isend", "irecv", "batch_isend_irecv", "DistributedDataParallel",
    "FullyShardedDataParallel", "fully_shard",
}  # fmt: skip
RANDOM = {
    "random", "randint", "randrange", "randbytes", "getrandbits", "choice", "choices", "sample", "shuffle", "uniform",
    "triangular", "gauss", "normalvariate", "lognormvariate", "expovariate", "betavariate", "gammavariate",
    "paretovariate", "weibullvariate", "vonmisesvariate", "binomialvariate",
}  # fmt: skip
NUMPY_SEEDED = {"seed", "get_state", "set_state", "default_rng"}
TORCH_RANDOM = {
    "rand", "randn", "randint", "randperm", "multinomial", "bernoulli", "normal", "poisson", "binomial", "rand_like",
    "randn_like", "randint_like",
}  # fmt: skip
FUNCTIONAL_RANDOM = {
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "gumbel_softmax",
    "rrelu",
}  # fmt: skip
UNKEYED = {"randperm", "multinomial", "poisson", "binomial", "rrelu"}
"""Torch's randomness that isn't keyed by sample even in a model's forward; train/randomness.py keys all the rest."""
AUGMENTING = {
    "ColorJitter", "ScaleJitter", "AutoAugment", "RandAugment", "TrivialAugmentWide", "AugMix", "ElasticTransform",
    "GaussianNoise", "MixUp", "CutMix",
}  # fmt: skip
"""Random transforms of torchvision whose names don't begin with Random."""
TENSOR_RANDOM = {"normal_", "uniform_", "bernoulli_", "exponential_", "random_", "log_normal_"}
SEEDS = {"torch": ("torch.manual_seed", "torch.random.manual_seed", "torch.seed", "torch.random.seed"),
         "random": ("random.seed",), "numpy": ("numpy.random.seed",)}  # fmt: skip
CLOCKS_AND_IDS = ("time.", "datetime.", "uuid.", "secrets.", "os.getpid", "os.urandom", "socket.gethostname",
                  "platform.node", "torch.distributed.get_rank")  # fmt: skip
LOOP, ITEM, FORWARD, PASSED = "the training loop", "__getitem__", "forward", "a collate function or transform"


class Finding(NamedTuple):
    """A verdict to be; `what` without the file and line."""

    line: int
    level: Level
    what: str
    remedy: str


def judge(text: str, name: str) -> tuple[Verdict, ...]:
    """Verdicts of level warn or refuse about a script, by line; `name` is what it is called in the reasons.

    refuse: it can't run in a chain. warn: it runs, but not exactly as on one machine. Never raises: of a text that
    isn't Python it says nothing.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            script = Source(ast.parse(text))
        if not script.imports_daisychain:
            return (_unchained(name),)
        found = {finding for check in CHECKS for finding in check(script)}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return tuple(
        Verdict(level=f.level, check="script", reason=f"{name}:{f.line}: {f.what}", remedy=f.remedy)
        for f in sorted(found)
    )


def _unchained(name: str) -> Verdict:
    return Verdict(
        level="warn",
        check="script",
        reason=f"{name} doesn't call daisychain.init(): every node would train the whole of it by itself",
        remedy="Add chain = daisychain.init(), model, optimizer, loader = chain.prepare(model, optimizer, loader) and "
        "for epoch in chain.epochs(10), as README's 'Your own script' shows",
    )


# --- reading ---------------------------------------------------------------------------------------


# --- data: the words of the checks at run time in train/batches.py ----------------------------------


def _iterable_classes(script: Source) -> Iterator[Finding]:
    """Classes that may be a chained loader's data: not where the data of each such loader is seen to be another."""
    given = [script.value(argument(call, "dataset", 0)) for call in _chained_loaders(script)]
    if given and all(isinstance(data, ast.Call) and not _is_iterable(script, data) for data in given):
        return
    for node in script.classes.values():
        if script.is_a(node, lambda full: is_data(full, ITERABLE)):
            yield _iterable(node.lineno)


def _is_iterable(script: Source, data: ast.Call) -> bool:
    made = script.classes.get(data.func.id) if isinstance(data.func, ast.Name) else None
    return is_data(script.full(data.func), ITERABLE) or (
        made is not None and script.is_a(made, lambda full: is_data(full, ITERABLE))
    )


def _iterable(line: int) -> Finding:
    what = "an IterableDataset can't be cut between nodes: its samples have no numbers"
    return Finding(line, "refuse", what, "Use a Dataset with __len__ and __getitem__")


def _chained_loaders(script: Source) -> Iterator[ast.Call]:
    for call in script.calls:
        if is_data(script.full(call.func), {"DataLoader"}) and _is_chained(script, call):
            yield call


def _loaders(script: Source) -> Iterator[Finding]:
    for call in _chained_loaders(script):
        data = script.value(argument(call, "dataset", 0))
        if isinstance(data, ast.Call) and is_data(script.full(data.func), ITERABLE):
            yield _iterable(call.lineno)
        batches = script.value(argument(call, "batch_sampler", 4))
        if is_none(script.value(argument(call, "batch_size", 1))) or (batches is not None and _is_made(batches)):
            what = "the DataLoader has its own batch_sampler, or no batches"
            yield Finding(
                call.lineno,
                "refuse",
                what,
                "Give it batch_size and shuffle instead; DaisyChain cuts the batches itself",
            )
        elif sampler := _bad_sampler(script, script.value(argument(call, "sampler", 3))):
            what = f"the DataLoader's sampler ({sampler}) can't be cut between nodes"
            remedy = "Use shuffle=True or shuffle=False without a sampler; "
            yield Finding(call.lineno, "refuse", what, remedy + "DaisyChain does what a DistributedSampler would")


def _is_chained(script: Source, call: ast.Call) -> bool:
    """Whether a DataLoader may come to chain.prepare: not when it is only ever walked through in the script."""
    if not script.prepares or any(isinstance(arg, ast.Starred) for p in script.prepares for arg in p.args):
        return True
    if call in script.target_of:
        name = script.target_of[call]
        returns = [node for node in script.nodes if isinstance(node, ast.Return) and node.value is not None]
        returned = {part.id for node in returns for part in ast.walk(node) if isinstance(part, ast.Name)}
        return "." in name or name in script.given | returned
    outer = list(script.around(call))
    if any(node in script.prepares for node in outer):
        return True
    statement = next(node for node in outer if isinstance(node, ast.stmt))
    return not isinstance(statement, ast.For | ast.Expr)


def _is_made(node: ast.expr) -> bool:
    return isinstance(node, ast.Call | ast.List | ast.ListComp)


def _bad_sampler(script: Source, node: ast.expr | None) -> str:
    """The class of a sampler that can't be cut, '' for a good or an unknown one."""
    if not isinstance(node, ast.Call):
        return ""
    full = script.full(node.func)
    if is_data(full, {"SequentialSampler"}):
        return ""
    if is_data(full, {"RandomSampler"}):
        replacement = script.value(argument(node, "replacement", 1))
        return "RandomSampler" if isinstance(replacement, ast.Constant) and replacement.value is True else ""
    name = (full or ast.unparse(node.func)).rsplit(".", 1)[-1]
    return name if full.endswith("Sampler") or name in script.classes else ""


def _groups(script: Source) -> Iterator[Finding]:
    for call in script.calls:
        full = script.full(call.func)
        if full.startswith(("torch.distributed.", "torch.nn.parallel.")) and full.rsplit(".", 1)[1] in GROUP_CALLS:
            what = f"{full.rsplit('.', 1)[1]} is torch.distributed's own: its group and DaisyChain's would fight"
            yield Finding(call.lineno, "refuse", what, "Leave it out; chain.prepare does what is needed")


# --- models ------------------------------------------------------------------------------------------


def _norms(script: Source) -> Iterator[Finding]:
    for call in script.calls:
        full = script.full(call.func).removesuffix(".convert_sync_batchnorm")
        name = full.rsplit(".", 1)[-1] if full.startswith("torch.nn.") else ""
        tracked = script.value(argument(call, "track_running_stats", 3 if name.startswith("Lazy") else 4))
        tracks = isinstance(tracked, ast.Constant) and tracked.value is True
        if name == "SyncBatchNorm" or name.startswith("LazyBatchNorm") or ("InstanceNorm" in name and tracks):
            yield _norm(call.lineno, name)
        if full == "torch.nn.functional.batch_norm" and not _is_off(script, argument(call, "training", 5)):
            yield _norm(call.lineno, "functional.batch_norm")
    for node in script.classes.values():
        if "forward" in methods(node) and script.is_a(node, _is_batch_norm):
            yield _norm(node.lineno, f"{node.name}, with a forward of its own,")


def _is_off(script: Source, flag: ast.expr | None) -> bool:
    """Whether an argument isn't given, or given as 0, False or None."""
    value = script.value(flag)
    return flag is None or (isinstance(value, ast.Constant) and not value.value)


def _is_batch_norm(full: str) -> bool:
    name = full.rsplit(".", 1)[-1]
    return full.startswith("torch.nn.") and (name in ("_BatchNorm", "_NormBase") or "BatchNorm" in name)


def _norm(line: int, name: str) -> Finding:
    what = f"{name} takes the statistics of each node's own part of the batch: not exactly as on one machine"
    return Finding(line, "warn", what, "Use BatchNorm1d, 2d or 3d as it is, or GroupNorm or LayerNorm")


def _recurrent_dropout(script: Source) -> Iterator[Finding]:
    for call in script.calls:
        full = script.full(call.func)
        if full not in ("torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN"):
            continue
        # torch's RNN names its nonlinearity by keyword, or between layers and bias
        given, layers = argument(call, "dropout", 6 if full.endswith(".RNN") else 5), argument(call, "num_layers", 2)
        depth = script.value(layers)
        shallow = layers is None or (isinstance(depth, ast.Constant) and depth.value == 1)
        if not _is_off(script, given) and not (shallow and not _is_starred(call)):
            what = f"the dropout between the layers of {full[9:]} depends on which node the sample lands on"
            yield Finding(call.lineno, "warn", what, "Use one-layer modules with nn.Dropout between them, or dropout=0")


def _is_starred(call: ast.Call) -> bool:
    return any(isinstance(arg, ast.Starred) for arg in call.args) or any(k.arg is None for k in call.keywords)


# --- randomness ----------------------------------------------------------------------------------------


def _seeds(script: Source) -> Iterator[Finding]:
    seeding = {name for names in SEEDS.values() for name in names} | {"numpy.random.default_rng"}
    for call in script.calls:
        full = script.full(call.func)
        method = isinstance(call.func, ast.Attribute) and call.func.attr == "manual_seed"
        if full not in seeding and not method:
            continue
        values = [*call.args, *(keyword.value for keyword in call.keywords)]
        source = next((s for value in values for s in _clocks(script, value)), "")
        if source or (full.endswith(".seed") and all(is_none(value) for value in values)):
            what = f"the seed is {f'made from {source}' if source else 'drawn'} on each node: other numbers on each"
            yield Finding(call.lineno, "warn", what, "Use chain.seed, or a fixed number")


def _clocks(script: Source, node: ast.expr, depth: int = 3) -> Iterator[str]:
    """Clocks, identities and ranks that a value is made from, also through a name."""
    for part in ast.walk(node):
        full = script.full(part.func) if isinstance(part, ast.Call) else ""
        if full.startswith(CLOCKS_AND_IDS):
            yield f"{full}()"
        elif isinstance(part, ast.Attribute) and part.attr == "rank" and ast.unparse(part.value) in script.chains:
            yield ast.unparse(part)
        elif depth and isinstance(part, ast.Name) and len(values := script.values.get(part.id, [])) == 1 and values[0]:
            yield from _clocks(script, values[0], depth - 1)


def _randomness(script: Source) -> Iterator[Finding]:
    seen: set[tuple[ast.AST, str]] = set()
    for where, parts, owner in _places(script):
        for call, name in _draws(script, parts, owner, where, seen):
            what = f"{name}() in {where} depends on which node the sample lands on"
            remedy = "Draw it before the loop, or in __getitem__ from a generator seeded by the sample's index"
            yield Finding(call.lineno, "warn", what, remedy)


def _places(script: Source) -> Iterator[tuple[str, Sequence[ast.AST], ast.ClassDef | None]]:
    """What each node does for its own samples: where, the code, and the class that it belongs to."""
    for node in script.nodes:
        if isinstance(node, ast.ClassDef):
            own = methods(node)
            if script.is_a(node, lambda full: full.startswith("torch.utils.data.") or "datasets" in full.split(".")):
                yield ITEM, [own[name] for name in ("__getitem__", "__getitems__") if name in own], node
            elif "forward" in own and script.is_a(node, is_module):
                yield FORWARD, [own["forward"]], node
        elif isinstance(node, ast.For | ast.AsyncFor) and _is_training(script, node.iter):
            yield LOOP, node.body, next((o for o in script.around(node) if isinstance(o, ast.ClassDef)), None)
        elif isinstance(node, ast.keyword) and node.arg in ("collate_fn", "transform", "target_transform"):
            yield from _passed(script, node.value)


def _is_training(script: Source, over: ast.expr) -> bool:
    """Whether a loop goes over chain.epochs(...) or a prepared loader, also through enumerate, tqdm and the like."""
    if isinstance(over, ast.Call):
        return _is_epochs(over) or any(_is_training(script, arg) for arg in over.args)
    return isinstance(over, ast.Name | ast.Attribute) and ast.unparse(over) in _prepared(script)


def _prepared(script: Source) -> set[str]:
    """The names, self.name too, that the results of chain.prepare are given to."""
    assigns = [script.parents.get(call) for call in script.prepares]
    targets = [target for node in assigns if isinstance(node, ast.Assign) for target in node.targets]
    parts = [part for target in targets for part in ([target] if not isinstance(target, ast.Tuple) else target.elts)]
    return {ast.unparse(part) for part in parts if isinstance(part, ast.Name | ast.Attribute)}


def _passed(script: Source, value: ast.expr) -> Iterator[tuple[str, Sequence[ast.AST], ast.ClassDef | None]]:
    """Functions and callable objects of the script inside an argument, also through a name."""
    known = script.value(value)
    for part in [*ast.walk(value), *(ast.walk(known) if known not in (None, value) else ())]:
        if isinstance(part, ast.Lambda):
            yield PASSED, [part], None
        elif isinstance(part, ast.Name) and part.id in script.functions:
            yield PASSED, [script.functions[part.id]], None
        elif isinstance(part, ast.Name) and part.id in script.classes:
            own = methods(script.classes[part.id])
            called = [own[name] for name in ("__call__", "forward") if name in own]
            yield PASSED, called, script.classes[part.id]


def _draws(
    script: Source, parts: Sequence[ast.AST], owner: ast.ClassDef | None, where: str, seen: set[tuple[ast.AST, str]]
) -> Iterator[tuple[ast.Call, str]]:
    """Calls that draw random numbers there or in functions of the script called from there, each once, and its name."""
    for part in parts:
        if (part, where) in seen:
            continue
        seen.add((part, where))
        here = list(_walk(script, part))
        calls = [node for node in here if isinstance(node, ast.Call)]
        seeded = _seeded(script, calls) if where != LOOP or isinstance(part, Function) else set()
        for call in calls:
            family, name = _draw(script, call)
            if name and family not in seeded and not (where == FORWARD and _is_keyed(name)):
                yield call, name
            called = _own_function(script, call, owner)
            if called is not None and not script.is_without_gradient(called.body[0]):
                yield from _draws(script, [called], owner, where, seen)


def _walk(script: Source, part: ast.AST) -> Iterator[ast.AST]:
    """Everything below, but not what rank 0 does alone, what keeps its random numbers to itself, nor a look at the
    model between two epochs.
    """
    waiting: list[ast.AST] = [part]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and _is_main(node.test):
            waiting += node.orelse
        elif not _is_apart(script, node):
            yield node
            waiting += ast.iter_child_nodes(node)


def _is_apart(script: Source, node: ast.AST) -> bool:
    names = {script.full(item.func if isinstance(item, ast.Call) else item) for item in guards(node)}
    if any(name.endswith(".fork_rng") for name in names):
        return True
    loop = next((outer for outer in script.around(node) if isinstance(outer, ast.For | ast.AsyncFor)), None)
    return bool(names & NO_GRADIENT) and loop is not None and _is_epochs(loop.iter)


def _is_epochs(over: ast.expr) -> bool:
    """Whether a loop goes over chain.epochs(...), also through enumerate, tqdm and the like."""
    if not isinstance(over, ast.Call):
        return False
    return (isinstance(over.func, ast.Attribute) and over.func.attr == "epochs") or any(map(_is_epochs, over.args))


def _is_main(test: ast.expr) -> bool:
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    return any(ast.unparse(part).endswith((".is_main", ".rank == 0")) for part in parts)


def _seeded(script: Source, calls: Sequence[ast.Call]) -> set[str]:
    """Families of random numbers that are seeded by these calls."""
    names = {script.full(call.func) for call in calls}
    return {family for family, seeds in SEEDS.items() if names & set(seeds)}


def _own_function(
    script: Source, call: ast.Call, owner: ast.ClassDef | None
) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The function, or method of the same object, of the script that is called."""
    func = call.func
    if isinstance(func, ast.Name):
        return script.functions.get(func.id)
    if owner is not None and isinstance(func, ast.Attribute) and ast.unparse(func.value) == "self":
        found = methods(owner).get(func.attr)
        return found if not isinstance(found, ast.Lambda) else None
    return None


def _draw(script: Source, call: ast.Call) -> tuple[str, str]:
    """Which family of random numbers a call draws from, and its name; both '' when none, or from a generator."""
    full = script.full(call.func)
    base, _, name = full.rpartition(".")
    if base == "random" and name in RANDOM:
        return "random", full
    if base == "numpy.random" and name.islower() and name not in NUMPY_SEEDED:
        return "numpy", full
    drawing = (
        (base == "torch" and name in TORCH_RANDOM)
        or (base == "torch.nn.functional" and name in FUNCTIONAL_RANDOM)
        or (not full and isinstance(call.func, ast.Attribute) and call.func.attr in TENSOR_RANDOM)
    )
    if drawing and not any(keyword.arg in ("generator", None) for keyword in call.keywords):
        return "torch", full or f"Tensor.{ast.unparse(call.func).rsplit('.', 1)[-1]}"
    return "", ""


def _is_keyed(name: str) -> bool:
    return name.startswith(("torch.", "Tensor.")) and name.rsplit(".", 1)[1] not in UNKEYED


def _augmentations(script: Source) -> Iterator[Finding]:
    """Random transforms of torchvision, all in one finding; not when a __getitem__ of the script seeds torch."""
    items = [method for node in script.classes.values() for name, method in methods(node).items() if name == ITEM]
    calls = [node for method in items for node in ast.walk(method) if isinstance(node, ast.Call)]
    if "torch" in _seeded(script, calls):
        return
    found: dict[str, int] = {}
    for call in script.calls:
        full = script.full(call.func)
        name = full.rsplit(".", 1)[-1]
        if full.startswith("torchvision.transforms.") and (name.startswith("Random") or name in AUGMENTING):
            found[name] = min(call.lineno, found.get(name, call.lineno))
    if found:
        names = ", ".join(sorted(found, key=found.__getitem__))
        what = f"what is drawn by {names} depends on which node the sample lands on"
        remedy = "Begin __getitem__ with a torch.manual_seed made from the sample's index and the epoch"
        yield Finding(min(found.values()), "warn", what, remedy)


# --- the loss -----------------------------------------------------------------------------------------


def _sums(script: Source) -> Iterator[Finding]:
    """Losses that are a sum; not when chain.count is told of what was counted."""
    if any(f"{chain}.count" == ast.unparse(call.func) for call in script.calls for chain in script.chains):
        return
    what = "the loss is a sum: it must be a mean over the batch's samples, or use chain.count"
    for call in script.calls:
        if _is_summed_loss(script, call) or _is_summed_backward(script, call):
            yield Finding(call.lineno, "warn", what, "Use reduction='mean', or tell chain.count what each loss counts")


def _reduction(script: Source, call: ast.expr | None) -> str:
    """How a loss of torch reduces; '' when it isn't one, or that isn't known."""
    if not isinstance(call, ast.Call):
        return ""
    full = script.full(call.func)
    is_loss = full.startswith("torch.nn.functional.") or (full.startswith("torch.nn.") and full.endswith("Loss"))
    if not is_loss:
        module = script.value(call.func)
        return _reduction(script, module) if isinstance(module, ast.Call) and module is not call else ""
    given = next((k.value for k in call.keywords if k.arg == "reduction"), None)
    value = script.value(given)
    return "mean" if given is None else str(value.value) if isinstance(value, ast.Constant) else ""


def _is_summed_loss(script: Source, call: ast.Call) -> bool:
    if _reduction(script, call) != "sum" or not script.full(call.func):
        return False
    name = script.target_of.get(call, "")
    if not script.full(call.func).endswith("Loss"):
        return not _is_harmless(script, call)
    uses = [use for use in script.calls if ast.unparse(use.func) == name] if name else []
    direct = script.parents.get(call)
    uses += [direct] if isinstance(direct, ast.Call) and direct.func is call else []
    return not uses or not all(_is_harmless(script, use) for use in uses)


def _is_harmless(script: Source, call: ast.Call) -> bool:
    """Whether a sum is divided, or is no loss to train by: a number, or without gradient."""
    if script.is_without_gradient(call) or _is_divided(script, call):
        return True
    outer = script.parents.get(call)
    if isinstance(outer, ast.Attribute) and outer.attr in ("item", "detach", "div", "div_"):
        return True
    name = script.target_of.get(call, "")
    same = [n for n in script.nodes if name and isinstance(n, ast.Name | ast.Attribute) and ast.unparse(n) == name]
    return any(_is_divided(script, use) for use in same)


def _is_divided(script: Source, node: ast.AST) -> bool:
    for outer in script.around(node):
        if isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Div):
            return any(part is node for part in ast.walk(outer.left))
        if isinstance(outer, ast.AugAssign) and isinstance(outer.op, ast.Div):
            return outer.target is node
        if isinstance(outer, ast.Call) and script.full(outer.func) in ("torch.div", "torch.divide"):
            return True
        if isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Mult):
            factors = (outer.left, outer.right)
            if any(isinstance(f, ast.BinOp) and isinstance(f.op, ast.Div) for f in factors):
                return True
        if not isinstance(outer, ast.BinOp):
            return False
    return False


def _is_summed_backward(script: Source, call: ast.Call) -> bool:
    """Whether it is X.sum().backward(), X being one value a sample as far as the script shows."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "backward":
        return False
    loss = script.value(call.func.value)
    if not (isinstance(loss, ast.Call) and isinstance(loss.func, ast.Attribute) and loss.func.attr == "sum"):
        return False
    if loss.args or loss.keywords or script.full(loss.func):
        return False
    summed = script.value(loss.func.value)
    if summed is None or _reduction(script, summed) in ("mean", "sum"):
        return False
    return not any(
        (isinstance(part, ast.Call) and script.full(part.func) in ("torch.stack", "torch.cat"))
        or isinstance(part, ast.Div)
        or (isinstance(part, ast.Call) and _reduction(script, part) == "mean")
        for part in ast.walk(summed)
    )


CHECKS: tuple[Callable[[Source], Iterator[Finding]], ...] = (
    _iterable_classes, _loaders, _groups, _norms, _recurrent_dropout, _seeds, _randomness, _augmentations,
    _sums,
)  # fmt: skip
