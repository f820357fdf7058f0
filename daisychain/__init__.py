"""DaisyChain: chain spare machines on one network to train small PyTorch models faster.

The training API is imported lazily, so that importing daisychain never imports torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from daisychain.train.api import Chain as Chain
    from daisychain.train.api import init as init

__version__ = "0.1.0"
__all__ = ["Chain", "__version__", "init"]


def __getattr__(name: str) -> object:
    if name in ("Chain", "init"):
        from daisychain.train import api

        return getattr(api, name)
    raise AttributeError(f"module 'daisychain' has no attribute {name!r}")
