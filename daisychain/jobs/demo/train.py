"""In a rank: learn to foretell the next character of a text.

    python -m daisychain.jobs.demo.train [FOLDER]

FOLDER holds what prepare.py wrote; without it, the working folder or the one folder below it that does.
Options of the run: batch (global batch), epochs (each a pass over WINDOWS windows). 250 steps by default.
"""

import math
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import daisychain
from daisychain.errors import DataError
from daisychain.jobs.demo.prepare import TEXT_FILE, VOCABULARY_FILE, Vocabulary
from daisychain.jobs.folders import find_folder

MODEL_FILE = "model.pt"
CONTEXT = 32
"""Characters that the model sees before the one it foretells."""
FORETOLD = 8
"""Characters of a window that are foretold, each from the CONTEXT before it: more work for the same gradients."""
WINDOW = CONTEXT + FORETOLD
WINDOWS = 51_200
"""Windows of text in an epoch."""
VALIDATION_WINDOWS = 4_096
BATCH = 1024
EPOCHS = 5
RATE = 3e-3
EMBEDDING = 16
HIDDEN = (192, 128)
SAMPLE = 200


class NextCharacter(nn.Module):
    """Codes (n, CONTEXT + k), integers -> logits (n, characters, k + 1) of the character after each CONTEXT."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, EMBEDDING)
        first, second = HIDDEN
        self.layers = nn.Sequential(
            nn.Linear(CONTEXT * EMBEDDING, first),
            nn.ReLU(),
            nn.Linear(first, second),
            nn.ReLU(),
            nn.Linear(second, characters),
        )

    def forward(self, codes: Tensor) -> Tensor:
        contexts = self.embedding(codes.long().unfold(1, CONTEXT, 1)).flatten(2)
        found: Tensor = self.layers(contexts).transpose(1, 2)
        return found


def loss_of(model: nn.Module, window: Tensor) -> Tensor:
    """Mean cross entropy, in nats, over the FORETOLD characters of each window (n, WINDOW)."""
    return nn.functional.cross_entropy(model(window[:, :-1]), window[:, CONTEXT:].long())


def windows(codes: Tensor, count: int) -> Tensor:
    """`count` windows at even distances: (count, WINDOW). codes: (characters,), at least WINDOW of them."""
    starts = torch.linspace(0, len(codes) - WINDOW, count, dtype=torch.float64).long()
    return codes[starts[:, None] + torch.arange(WINDOW)]


def bits_per_character(model: nn.Module, seen: Tensor) -> float:
    """Mean number of bits that the model needs for a foretold character of windows (n, WINDOW)."""
    device = next(model.parameters()).device
    model.eval()
    with torch.no_grad():
        chunks = [seen[start : start + 1024].to(device) for start in range(0, len(seen), 1024)]
        losses = [loss_of(model, chunk).item() * len(chunk) for chunk in chunks]
    return math.fsum(losses) / len(seen) / math.log(2)


def unigram_bits(train: Sequence[int], seen: Sequence[int], characters: int) -> float:
    """Bits a character of `seen` when only the frequencies in `train` are known; one is added to each count."""
    counts = Counter(train)
    total = len(train) + characters
    return math.fsum(-math.log2((counts[code] + 1) / total) for code in seen) / len(seen)


def most_letters(contexts: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Of contexts (n, CONTEXT) the one with the most letters: prose rather than a table's frame."""
    letters = torch.tensor([character.isalpha() for character in vocabulary.characters])
    return contexts[letters[contexts.long()].sum(dim=1).argmax()]


def sample(model: nn.Module, start: Tensor, vocabulary: Vocabulary, seed: int) -> str:
    """SAMPLE characters that the model writes after `start` (CONTEXT,), for people to look at."""
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    codes = start.long().tolist()
    with torch.no_grad():
        for _ in range(SAMPLE):
            logits = model(torch.tensor([codes[-CONTEXT:]], device=device))[0, :, 0].cpu()
            codes.append(int(torch.multinomial((logits / 0.7).softmax(0), 1, generator=generator)))
    return "".join(vocabulary.characters[code] for code in codes[CONTEXT:])


def load(folder: Path) -> tuple[Tensor, Vocabulary]:
    """The text's codes (characters,) uint8, and their meaning; DataError naming what can't be read."""
    try:
        vocabulary = msgspec.json.decode((folder / VOCABULARY_FILE).read_bytes(), type=Vocabulary)
        text = bytearray((folder / TEXT_FILE).read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise DataError(f"{folder}: the demo's text can't be read: {error}", "Start the demo again") from error
    if not text or max(text) >= len(vocabulary.characters):
        raise DataError(f"{folder / TEXT_FILE} is damaged", "Start the demo again")
    return torch.frombuffer(text, dtype=torch.uint8), vocabulary


def main(arguments: list[str]) -> None:
    """Train, then on rank 0 score, save and write a sample to the log."""
    chain = daisychain.init()
    folder = find_folder(arguments, Path.cwd(), VOCABULARY_FILE)
    codes, vocabulary = load(folder)
    characters = len(vocabulary.characters)
    torch.manual_seed(chain.seed)
    model: nn.Module = NextCharacter(characters).to(chain.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=chain.device.type in ("cpu", "cuda"))
    data = windows(codes[: vocabulary.train], WINDOWS)
    batch = int(chain.option("batch", None) or BATCH)
    loader: Iterable[list[Tensor]] = DataLoader(TensorDataset(data), batch_size=batch, shuffle=True)
    model, optimizer, loader = chain.prepare(model, optimizer, loader)
    for _ in chain.epochs(int(chain.option("epochs", None) or EPOCHS)):
        for (window,) in loader:
            loss = loss_of(model, window.to(chain.device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            chain.log(loss=loss)
    if chain.is_main:
        plain = chain.unwrap(model)
        held_out = windows(codes[vocabulary.train :], VALIDATION_WINDOWS)
        truth = held_out[:, CONTEXT:].flatten().tolist()
        baseline = unigram_bits(codes[: vocabulary.train].tolist(), truth, characters)
        name = "loss_bits_per_character"
        chain.report_scores({name: bits_per_character(plain, held_out), "baseline": {name: baseline}})
        chain.save(model, MODEL_FILE)
        described = Path(chain.folder) / VOCABULARY_FILE
        if described.resolve() != (folder / VOCABULARY_FILE).resolve():
            shutil.copyfile(folder / VOCABULARY_FILE, described)
        start = most_letters(held_out[:, :CONTEXT], vocabulary)
        sys.stdout.write(f"A sample of what it writes now:\n{sample(plain, start, vocabulary, chain.seed)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
