"""A training that exchanges much for what it computes: a dense network of 0.67 million parameters, 2.7 MB a step.

On a slow link it is slower on a chain than on its fastest machine. Run it as throughput.py beside it does:
`python tests/bench/throughput.py --script tests/bench/dense.py`.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import daisychain

SAMPLES, BATCH, WIDTH = 12_288, 1536, 256


def main() -> None:
    chain = daisychain.init()
    model = nn.Sequential(
        nn.Linear(WIDTH, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU(), nn.Linear(640, 128), nn.ReLU(),
        nn.Linear(128, 10),
    ).to(chain.device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    rows, labels = torch.randn(SAMPLES, WIDTH), torch.randint(10, (SAMPLES,))
    loader = DataLoader(TensorDataset(rows, labels), batch_size=BATCH, shuffle=True)
    model, optimizer, loader = chain.prepare(model, optimizer, loader)
    for _ in chain.epochs(6):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(chain.device)), y.to(chain.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            chain.log(loss=loss)


if __name__ == "__main__":
    main()
