"""Whether this torch can use a GPU, tried for real: `python -m daisychain.train.probe_gpu`, which sees that GPU alone.

Prints JSON lines:
{"kind": "gpu", "torch", "cuda", "arch_list", "capability", "error", "points"}, then {"kind": "done"};
points: [samples, seconds] of the bench's steps, where it works. A kernel that isn't there breaks everything after it in
its process, so each GPU has a child of its own. Ends when stdin does.
"""

import threading
from typing import Any

from daisychain.train.bench import SIZES, end_with_stdin, measure, reference_step, say


def main() -> None:
    threading.Thread(target=end_with_stdin, daemon=True).start()
    import torch

    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda or "", "arch_list": []}
    try:
        found["arch_list"] = list(torch.cuda.get_arch_list())
        found["capability"] = list(torch.cuda.get_device_capability(0))
        convolve(torch.device("cuda:0"))
        found["points"] = [[samples, measure(reference_step(samples, "cuda:0"), 1.0)] for samples in SIZES]
        found["error"] = ""
    except Exception as error:  # torch has many kinds for a GPU that can't be used; its last words say which
        found["error"] = _last_words(error)
    say({"kind": "gpu", **found})
    say({"kind": "done"})


def convolve(device: Any) -> None:
    """A small convolution, forward and backward, and a matrix product. Raises RuntimeError when they come out wrong."""
    import torch
    from torch import nn

    x = torch.arange(2 * 3 * 8 * 8, dtype=torch.float32).view(2, 3, 8, 8).sin()
    weight = torch.arange(4 * 3 * 3 * 3, dtype=torch.float32).view(4, 3, 3, 3).cos()
    wanted, found = (_gradient(nn.functional, x, weight, to) for to in (torch.device("cpu"), device))
    if not torch.allclose(found, wanted, rtol=1e-2, atol=1e-2):  # TF32 has ten bits
        raise RuntimeError("a small convolution came out wrong")


def _gradient(functional: Any, x: Any, weight: Any, device: Any) -> Any:
    import torch

    kernel = weight.to(device).requires_grad_()
    out = functional.conv2d(x.to(device), kernel)
    torch.autograd.backward((out.flatten(1) @ out.flatten(1).T).mean() / out.numel())
    return kernel.grad.cpu()


def _last_words(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


if __name__ == "__main__":
    main()
