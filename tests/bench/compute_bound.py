"""A training that computes much and exchanges little: a small convolutional network on made-up images.

One step over the batch of 256 takes about half a second on one core; its gradients are 0.4 MB. Run it alone
(`python compute_bound.py`) or on a chain (`daisychain run compute_bound.py`, see throughput.py beside it).
"""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import daisychain

SAMPLES, BATCH = 2048, 256
WARM_UP_STEPS = 2


def main() -> None:
    chain = daisychain.init()
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    ).to(chain.device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    images, labels = torch.randn(SAMPLES, 3, 32, 32), torch.randint(10, (SAMPLES,))
    loader = DataLoader(TensorDataset(images, labels), batch_size=BATCH, shuffle=True)
    model, optimizer, loader = chain.prepare(model, optimizer, loader)
    steps, begun_s = 0, 0.0
    for _ in chain.epochs(6):
        for x, y in loader:
            if steps == WARM_UP_STEPS:
                begun_s = time.perf_counter()
            loss = nn.functional.cross_entropy(model(x.to(chain.device)), y.to(chain.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            chain.log(loss=loss)
            steps += 1
    seconds = (time.perf_counter() - begun_s) / (steps - WARM_UP_STEPS)
    print(f"{BATCH / seconds:.1f} samples/s, {seconds * 1000:.0f} ms a step")


if __name__ == "__main__":
    main()
