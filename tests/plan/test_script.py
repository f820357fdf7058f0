"""What a script can't have made exact: a table of snippets, harmless look-alikes included."""

import ast
import re
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daisychain.plan.script import judge

ROOT = Path(__file__).parents[2]
HEAD = """\
import os, random, time, uuid, datetime
import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset as I, RandomSampler
from torch.utils import data
import daisychain
chain = daisychain.init()
"""
LOOP = """\
model, loader = chain.prepare(model, loader)
for epoch in chain.epochs(3):
    for x, y in loader:
        {}
"""
ITEM = """\
class Own(Dataset):
    def __getitem__(self, row):
        {}
"""
NET = """\
class Net(nn.Module):
    def forward(self, x):
        {}
"""


def reasons(text: str) -> list[str]:
    """Level and reason of each verdict, lines counted from the end of HEAD."""
    verdicts = judge(HEAD + textwrap.dedent(text), "train.py")
    assert all(v.check == "script" and v.remedy and "\n" not in v.reason + v.remedy for v in verdicts)
    first = HEAD.count("\n")
    parts = [re.fullmatch(r"train\.py:(\d+): (.*)", v.reason) for v in verdicts]
    assert all(parts), verdicts
    return [f"{v.level} {int(p[1]) - first}: {p[2]}" for v, p in zip(verdicts, parts, strict=True) if p]


ITERABLE = "an IterableDataset can't be cut between nodes: its samples have no numbers"
BATCHES = "the DataLoader has its own batch_sampler, or no batches"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("class S(I): pass", f"1: {ITERABLE}"),
        ("class S(I):\n    def __len__(self): return 3", f"1: {ITERABLE}"),
        ("class S(I[int]): pass", f"1: {ITERABLE}"),
        ("class S(I): pass\nloader = DataLoader(S(), 4)", f"1: {ITERABLE}"),
        ("class S(I): pass\nloader = DataLoader(make(S), 4)\nother = DataLoader(d, 4)", f"1: {ITERABLE}"),
        ("class S(torch.utils.data.IterableDataset): pass", f"1: {ITERABLE}"),
        ("class S(data.IterableDataset): pass", f"1: {ITERABLE}"),
        ("loader = DataLoader(data.ChainDataset([a, b]), 4)", f"1: {ITERABLE}"),
        ("d, s = 1, data.ChainDataset([a])\nloader = DataLoader(s, 4)", f"2: {ITERABLE}"),
        ("loader = DataLoader(d, batch_sampler=Mine())", f"1: {BATCHES}"),
        ("b = data.BatchSampler(s, 4, False)\nloader = data.DataLoader(d, batch_sampler=b)", f"2: {BATCHES}"),
        ("loader = DataLoader(d, batch_sampler=[[1], [2]])", f"1: {BATCHES}"),
        ("loader = DataLoader(d, batch_size=None)", f"1: {BATCHES}"),
        ("loader = DataLoader(d, None)", f"1: {BATCHES}"),
        ("loader = DataLoader(d, None)\nloader = chain.prepare(loader)", f"1: {BATCHES}"),
        ("model, loader = chain.prepare(m, DataLoader(d, None))", f"1: {BATCHES}"),
        ("def make():\n    l = DataLoader(d, None)\n    return l\nx = chain.prepare(make())", f"2: {BATCHES}"),
        ("loader = DataLoader(d, 4, sampler=data.WeightedRandomSampler(w, 9))", "1: the DataLoader's sampler (Weighte"),
        ("loader = DataLoader(d, 4, sampler=data.SubsetRandomSampler(w))", "(SubsetRandomSampler) can't be cut"),
        ("loader = DataLoader(d, 4, False, data.DistributedSampler(d))", "(DistributedSampler) can't be cut"),
        ("s = RandomSampler(d, replacement=True)\nloader = DataLoader(d, 4, sampler=s)", "2: the DataLoader's sampler"),
        ("loader = DataLoader(d, 4, sampler=RandomSampler(d, True))", "(RandomSampler) can't be cut"),
        ("class Mine(data.Sampler): pass\nloader = DataLoader(d, 4, sampler=Mine())", "2: the DataLoader's sampler (M"),
        ("dist.init_process_group('gloo')", "1: init_process_group is torch.distributed's own"),
        ("m = nn.parallel.DistributedDataParallel(m)", "1: DistributedDataParallel is"),
        ("from torch.nn.parallel import DistributedDataParallel as DDP\nm = DDP(m)", "2: DistributedDataParallel is"),
        ("def f(t):\n    dist.all_reduce(t)", "2: all_reduce is"),
    ],
)  # fmt: skip
def test_what_cannot_run_in_a_chain_is_refused_with_its_line(text: str, reason: str) -> None:
    (found,) = reasons(text)
    assert found.startswith("refuse ")
    assert reason in found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("m = nn.SyncBatchNorm.convert_sync_batchnorm(m)", "1: SyncBatchNorm takes the statistics of each node's own"),
        ("m = nn.SyncBatchNorm(3)", "1: SyncBatchNorm"),
        ("m = nn.Sequential(\n    nn.LazyBatchNorm1d())", "2: LazyBatchNorm1d"),
        ("m = nn.InstanceNorm2d(3, track_running_stats=True)", "1: InstanceNorm2d"),
        ("m = nn.InstanceNorm1d(3, 1e-5, 0.1, True, True)", "1: InstanceNorm1d"),
        ("class B(nn.BatchNorm2d):\n    def forward(self, x): return x", "1: B, with a forward of its own,"),
        ("from torch.nn.modules.batchnorm import _BatchNorm\nclass B(_BatchNorm):\n    def forward(self, x): pass", ""),
        ("m = nn.LSTM(3, 4, num_layers=2, dropout=0.1)", "1: the dropout between the layers of LSTM"),
        ("m = nn.GRU(3, 4, 2, True, True, 0.1)", "1: the dropout between the layers of GRU"),
        (NET.format("return F.batch_norm(x, None, None, training=self.training)"), "3: functional.batch_norm takes"),
        ("P = 0.5\nm = nn.RNN(3, 4, 2, dropout=P)", "2: the dropout between the layers of RNN"),
        ("torch.manual_seed(time.time())", "1: the seed is made from time.time()"),
        ("random.seed(os.getpid())", "1: the seed is made from os.getpid()"),
        ("s = uuid.uuid4().int % 9\nnp.random.seed(s)", "2: the seed is made from uuid.uuid4()"),
        ("g = torch.Generator().manual_seed(int(datetime.datetime.now().timestamp()))", "1: the seed is made from dat"),
        ("torch.manual_seed(chain.seed + chain.rank)", "1: the seed is made from chain.rank on each node"),
        ("torch.manual_seed(3 + dist.get_rank())", "1: the seed is made from torch.distributed.get_rank()"),
        ("c = daisychain.init()\nr = c.rank\nrandom.seed(r)", "3: the seed is made from c.rank on each node"),
        ("random.seed()", "1: the seed is drawn on each node"),
        ("torch.seed()", "1: the seed is drawn on each node"),
        (LOOP.format("x = x + torch.randn_like(x)"), "4: torch.randn_like() in the training loop depends on which nod"),
        (LOOP.format("x = x + torch.rand(x.shape)"), "4: torch.rand() in the training loop"),
        (LOOP.format("if random.random() < 0.5: x = x.flip(1)"), "4: random.random() in"),
        (LOOP.format("lam = np.random.beta(1, 1)"), "4: numpy.random.beta() in"),
        (LOOP.format("x = torch.empty_like(x).normal_()"), "4: Tensor.normal_() in"),
        ("for e in chain.epochs(2):\n    order = torch.randperm(9)", "2: torch.randperm() in the training loop"),
        ("loader = chain.prepare(l)\nfor i, x in enumerate(tqdm(loader)):\n    random.choice(x)", "3: random.choice()"),
        ("def mix(x):\n    return x[torch.randperm(len(x))]\n" + LOOP.format("x = mix(x)"), "2: torch.randperm() in"),
        (ITEM.format("return random.random()"), "3: random.random() in __getitem__"),
        (ITEM.format("return torch.rand(3)"), "3: torch.rand() in __getitem__"),
        (ITEM.format("return self.f()\n    def f(self):\n        return np.random.rand(3)"), "5: numpy.random.rand()"),
        ("class A(Dataset): pass\nclass B(A):\n    def __getitem__(self, i): return torch.randint(9, (1,))", "3: torc"),
        ("def c(b):\n    return torch.bernoulli(b)\nl = DataLoader(d, 4, collate_fn=c)", "2: torch.bernoulli() in a c"),
        ("l = DataLoader(d, 4, collate_fn=lambda b: random.sample(b, 2))", "1: random.sample() in a collate"),
        ("class J:\n    def __call__(self, x):\n        return x * random.random()\nd = D(transform=C([J()]))", "3: r"),
        (NET.format("return x[:, torch.randperm(4)]"), "3: torch.randperm() in forward"),
        (NET.format("return x * random.random()"), "3: random.random() in forward"),
        (NET.format("return x + np.random.randn()"), "3: numpy.random.randn() in forward"),
        (NET.format("return self.f(x)\n    def f(self, x):\n        return torch.multinomial(x, 1)"), "5: torch.mul"),
        (NET.format("return F.rrelu(x, training=True)"), "3: torch.nn.functional.rrelu() in forward"),
        (LOOP.format("x = F.dropout(x)"), "4: torch.nn.functional.dropout() in the training loop"),
        ("def noisy(x):\n    return torch.randn_like(x)\n" + NET.format("return noisy(x)") + LOOP.format("noisy(x)"),
         "2: torch.randn_like() in the training loop"),
        (LOOP.format("with torch.no_grad(): x = x + torch.randn_like(x)"), "4: torch.randn_like() in the training"),
        ("class T:\n    def fit(self):\n        for e in chain.epochs(3): self.one()\n"
         "    def one(self):\n        torch.randperm(3)", "5: torch.randperm() in the training loop"),
        ("self.loader = chain.prepare(l)\nfor x in self.loader: torch.rand(3)", "2: torch.rand() in the training loop"),
        ("from torchvision import datasets, transforms as T\nt = T.Compose([T.ToTensor(), T.RandomCrop(3),\n"
         "    T.ColorJitter()])", "2: what is drawn by RandomCrop, ColorJitter depends on which node"),
        ("from torchvision.transforms import v2\nt = v2.RandomHorizontalFlip()", "2: what is drawn by RandomHoriz"),
        ("f = nn.MSELoss(reduction='sum')\nloss = f(a, b)", "1: the loss is a sum: it must be a mean over the batch's"),
        (LOOP.format("loss = F.mse_loss(model(x), y, reduction='sum')"), "4: the loss is a sum"),
        ("def f(a, b):\n    return F.mse_loss(a, b, reduction='sum') + kl", "2: the loss is a sum"),
        ("loss = F.mse_loss(a, b, reduction='sum') * 0.5", "1: the loss is a sum"),
        ("model(x).sum().backward()", "1: the loss is a sum"),
        ("loss = F.mse_loss(a, b, reduction='none').sum()\nloss.backward()", "2: the loss is a sum"),
        ("n = text.count('a')\nloss = F.l1_loss(a, b, reduction='sum')", "2: the loss is a sum"),
    ],
)  # fmt: skip
def test_what_is_not_exactly_as_on_one_machine_is_warned_of_with_its_line(text: str, reason: str) -> None:
    (found,) = reasons(text)
    assert found.startswith("warn ")
    assert reason in found


@pytest.mark.parametrize(
    "text",
    [
        "class IterableDataset: pass\nclass S(IterableDataset): pass",
        "class IterableDataset(Dataset): pass\nloader = DataLoader(IterableDataset(), 4)",
        "class S(I): pass\nl, v = DataLoader(T(x), 4), DataLoader(S())\nl = chain.prepare(l)\nfor x in v: pass",
        "class DataLoader: pass\nloader = DataLoader(d, batch_size=None)",
        "loader = DataLoader(d, batch_size=4, shuffle=True, drop_last=True, batch_sampler=None, sampler=None)",
        "loader = DataLoader(d, 4, sampler=RandomSampler(d, replacement=False))",
        "loader = DataLoader(d, 4, sampler=data.SequentialSampler(d))",
        "def make(sampler, batch_sampler):\n    return DataLoader(d, 4, sampler=sampler, batch_sampler=batch_sampler)",
        "l, v = DataLoader(d, 4), DataLoader(d, batch_size=None)\nl = chain.prepare(l)\nfor x in v: pass",
        "l = chain.prepare(l)\nfor x in DataLoader(d, batch_size=None): pass",
        "dist.is_available() and dist.is_initialized()",
        "class dist:\n    pass\ndist.all_reduce(1)",
        "m = nn.BatchNorm2d(3)\nn = nn.InstanceNorm2d(3)\no = nn.InstanceNorm2d(3, track_running_stats=False)",
        "class B(nn.BatchNorm2d):\n    def __init__(self): super().__init__(3)",
        "class SyncBatchNorm: pass\nm = SyncBatchNorm()",
        "m = nn.LSTM(3, 4, 2, dropout=0.0)\nn = nn.GRU(3, 4, 2)\no = nn.LSTM(3, 4, dropout=0.1)",
        "P = 0.0\nm = nn.LSTM(3, 4, 2, dropout=P)",
        "m = nn.Sequential(nn.Dropout(0.1), nn.Dropout2d(), nn.AlphaDropout())",
        "torch.manual_seed(chain.seed)\nrandom.seed(3)\nnp.random.seed(seed=4)\nstart = time.time()",
        "x, y = torch.randn(9, 3), torch.randint(3, (9,))\nrandom.shuffle(files)\ni = np.random.permutation(9)",
        "x = torch.randn(9)\nmodel = loader = None\n" + LOOP.format("loss = model(x).mean(); model.train()"),
        LOOP.format("t = torch.rand(3, generator=g); r = rng.random()"),
        LOOP.format("pass") + "x = torch.randn(4)",
        LOOP.format("if chain.is_main and epoch: print(random.random())"),
        LOOP.format("if chain.rank == 0: print(torch.rand(3))"),
        LOOP.format("with torch.random.fork_rng(): torch.rand(3)"),
        "def random_name(random):\n    return random.choice([1])\n" + LOOP.format("random_name(rng)"),
        "@torch.no_grad()\ndef sample():\n    return torch.multinomial(p, 1)\n" + LOOP.format("sample()"),
        "model = chain.prepare(m)\nfor p in model.parameters():\n    nn.init.normal_(p); torch.rand(3)",
        "for x in range(3):\n    torch.rand(3)",
        "class Own(Dataset):\n    def __init__(self):\n        self.x = torch.randn(9); random.shuffle(self.x)",
        ITEM.format("torch.manual_seed(row); return torch.rand(3)"),
        ITEM.format("return random.Random(row).random(), np.random.default_rng(row).normal()"),
        ITEM.format("return torch.rand(3, generator=torch.Generator().manual_seed(row))"),
        "class Own:\n    def __getitem__(self, row):\n        return random.random()",
        NET.format("return F.dropout(x) + torch.rand_like(x) + torch.randn_like(x) + torch.bernoulli(x)"),
        NET.format("return x + torch.empty_like(x).normal_() + torch.randint(3, x.shape) + F.gumbel_softmax(x)"),
        NET.format("return F.batch_norm(x, m, v) + F.batch_norm(x, m, v, training=False)"),
        "from torchvision import transforms as T\nt = T.Compose([T.ToTensor(), T.CenterCrop(3), T.Normalize(0, 1)])",
        "class T:\n    RandomCrop = ColorJitter = print\nt = T.RandomCrop(3)",
        "from torchvision import transforms as T\nt = T.RandomCrop(3)\n"
        + ITEM.format("torch.manual_seed(row); return t(3)"),
        "import torchvision\nt = torchvision.transforms.functional.hflip(x)",
        "for e in chain.epochs(2):\n    with torch.no_grad():\n        show(model(torch.randn(9, 3)))",
        "def show():\n    torch.randn(9)\nfor e in chain.epochs(2):\n    with torch.inference_mode(): show()",
        "class T:\n    def fit(self):\n        for e in chain.epochs(3): self.one()\n    def one(self): pass\n"
        "    def other(self): torch.randperm(3)",
        "for e in range(3):\n    for x in other.loader: torch.rand(3)\nself.loader = chain.prepare(l)",
        "torch.manual_seed(chain.seed + args.rank_of_matrix)",
        "class Net(nn.Module):\n    def generate(self):\n        return torch.multinomial(self.p, 1)",
        "class Net(nn.Module):\n    def __init__(self):\n        self.i = torch.randperm(3)",
        "def collate(b):\n    return torch.stack(b)\nl = DataLoader(d, 4, collate_fn=collate)",
        "f = nn.MSELoss()\nloss = f(a, b)\nloss.backward()",
        "loss = F.mse_loss(a, b, reduction='sum')\nloss = loss / len(a)",
        "loss = F.mse_loss(a, b, reduction='sum') / len(a)",
        "loss = F.mse_loss(a, b, reduction='sum') * (1 / len(a))",
        "s = F.mse_loss(a, b, reduction='sum')\nloss = (1 / n) * s",
        "loss = torch.div(F.mse_loss(a, b, reduction='sum'), n)",
        "loss = F.mse_loss(a, b, reduction='sum').div(n)",
        "f = nn.L1Loss(reduction='sum')\nloss = f(a, b) / len(a)",
        "with torch.no_grad():\n    total += F.nll_loss(a, b, reduction='sum')",
        "total = F.nll_loss(a, b, reduction='sum').item()",
        "@torch.no_grad()\ndef test():\n    return F.nll_loss(a, b, reduction='sum')",
        "loss = F.mse_loss(a, b, reduction='sum')\nchain.count(n)",
        "loss = F.mse_loss(a, b)\nloss.sum().backward()",
        "torch.stack([F.mse_loss(a, b), F.l1_loss(a, b)]).sum().backward()",
        "loss = (F.mse_loss(a, b, reduction='none') * mask / mask.sum()).sum()\nloss.backward()",
        "loss = F.mse_loss(a, b, reduction='none').mean()\nloss.backward()",
        "from mine import all_reduce, SyncBatchNorm\nall_reduce(SyncBatchNorm(3))",
        "from .dist import all_reduce\nall_reduce(3)",
        "try:\n    import numpy as np\nexcept ImportError:\n    np = None\nx = np.random.rand(3)",
    ],
)  # fmt: skip
def test_what_is_harmless_is_not_mentioned(text: str) -> None:
    assert reasons(text) == []


@pytest.mark.parametrize(
    "text", ["", "import torch\n", "import torch.distributed as d\nd.init_process_group()", "x = 1"]
)
def test_a_script_that_joins_no_chain_is_told_how_and_nothing_else(text: str) -> None:
    (verdict,) = judge(text, "train.py")
    assert verdict.level == "warn"
    assert verdict.reason.startswith("train.py doesn't call daisychain.init(): every node would train the whole of it")
    assert "chain.prepare(model, optimizer, loader)" in verdict.remedy


@pytest.mark.parametrize("text", ["x = (", "\0", "if True:\npass", "x = " + "(" * 5000 + ")" * 5000, "print 'x'"])
def test_of_what_is_no_python_nothing_is_said(text: str) -> None:
    assert judge(text, "train.py") == ()


def test_very_deep_code_raises_nothing() -> None:
    judge("import daisychain, random\nx = random" + ".a" * 20_000 + "()", "train.py")


@given(st.lists(st.sampled_from([*re.findall(r"\w+|[^\w\s]", HEAD + LOOP + ITEM + NET), "\n"]), max_size=40))
def test_no_text_raises(words: list[str]) -> None:
    judge(HEAD + " ".join(words), "train.py")


def test_verdicts_come_in_the_order_of_the_lines() -> None:
    found = reasons("class S(I): pass\nrandom.seed()\nm = nn.SyncBatchNorm(3)\ndist.barrier()")
    assert [line.split(":")[0] for line in found] == ["refuse 1", "warn 2", "warn 3", "refuse 4"]


def scripts() -> list[tuple[str, str]]:
    """Whole training scripts of this repository: files, those inside tests, and README's."""
    files = [*ROOT.glob("tests/bench/*.py"), *ROOT.glob("daisychain/jobs/*/train.py")]
    texts = [(path.name, path.read_text(encoding="utf-8")) for path in files]
    # not those that only have a script in them
    found = [(name, text) for name, text in texts if any(map(_imports_daisychain, ast.parse(text).body))]
    for path in (ROOT / "tests/chain/conftest.py", ROOT / "tests/train/test_ranks.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and ".prepare(" in node.value:
                found.append((f"{path.name}:{node.lineno}", textwrap.dedent(node.value)))
    diff = re.search(r"```diff\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert diff
    lines = [line[1:] for line in diff[1].splitlines() if not line.startswith("-")]
    return [(name, text) for name, text in [*found, ("README.md", "\n".join(lines))] if "daisychain.init()" in text]


def _imports_daisychain(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import) and any(alias.name == "daisychain" for alias in node.names)


@pytest.mark.parametrize(("name", "text"), [pytest.param(*script, id=script[0]) for script in scripts()])
def test_good_scripts_get_no_false_alarm(name: str, text: str) -> None:
    ast.parse(text)
    summed = ["the loss is a sum"] if ".sum().backward()" in text else []
    assert [v.reason.split(": ")[1] for v in judge(text, name)] == summed
