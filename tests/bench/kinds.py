"""Three kinds of model on made-up data, for forecast.py beside it: `kinds.py mlp|cnn|transformer BATCH STEPS`."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import daisychain

WORDS, LENGTH, WIDTH = 64, 32, 64


class Transformer(nn.Module):
    """Next-letter model of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        """(n, LENGTH) indices to (n, LENGTH, WORDS) logits."""
        seen = self.letters(letters) + self.places(torch.arange(LENGTH))
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        return self.head(self.layers(seen, mask=mask, is_causal=True))  # type: ignore[no-any-return]


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(256, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU(), nn.Linear(640, 128), nn.ReLU(),
        nn.Linear(128, 10),
    )  # fmt: skip


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32),
        nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(64, 10),
    )  # fmt: skip


def data(kind: str, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    match kind:
        case "mlp":
            return torch.randn(samples, 256), torch.randint(10, (samples,))
        case "cnn":
            return torch.randn(samples, 3, 32, 32), torch.randint(10, (samples,))
    letters = torch.randint(WORDS, (samples, LENGTH))
    return letters, letters.roll(-1, 1)


def main() -> None:
    kind, batch, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    chain = daisychain.init()
    model = {"mlp": mlp, "cnn": cnn, "transformer": Transformer}[kind]()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    samples, labels = data(kind, batch * min(steps, max(1, 8192 // batch)))
    loader = DataLoader(TensorDataset(samples, labels), batch_size=batch, shuffle=True)
    model, optimizer, loader = chain.prepare(model, optimizer, loader)
    for _ in chain.epochs(-(-steps // len(loader))):
        for x, y in loader:
            output = model(x)
            loss = nn.functional.cross_entropy(output.flatten(0, -2), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            chain.log(loss=loss)


if __name__ == "__main__":
    main()
