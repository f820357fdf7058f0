"""Which modules a script needs before it can start, from its text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daisychain.plan.imports import Import, needed, package


def names(text: str, shipped: dict[str, str] | None = None) -> list[str]:
    return list(needed({"train.py": text, **(shipped or {})}, "train.py"))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("import torch, os", ["torch"]),
        ("import torch.nn.functional as F\nfrom torch import nn", ["torch"]),
        ("from sklearn.datasets import load_iris\nimport pandas as pd", ["sklearn", "pandas"]),
        ("import daisychain\nfrom __future__ import annotations", []),
        ("from . import helpers\nfrom .helpers import x", []),
        ("def plot():\n    import matplotlib", []),
        ("try:\n    import wandb\nexcept ImportError:\n    wandb = None", []),
        ("try:\n    import wandb\nexcept (OSError, ModuleNotFoundError):\n    pass", []),
        ("try:\n    import numpy\nexcept:\n    pass", []),
        ("try:\n    import numpy\nexcept OSError:\n    pass", ["numpy"]),
        ("try:\n    import numpy\nfinally:\n    pass", ["numpy"]),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy", []),
        ("import typing\nif typing.TYPE_CHECKING:\n    import numpy", []),
        ("if True:\n    import numpy\nwith x:\n    import pandas", ["numpy", "pandas"]),
        ("class A:\n    import numpy", ["numpy"]),
        ("import (", []),
    ],
)
def test_what_a_script_needs_to_start(text: str, wanted: list[str]) -> None:
    assert names(text) == wanted


def test_modules_that_are_shipped_are_looked_into_and_not_asked_for() -> None:
    beside = {"helpers.py": "import numpy", "pkg/__init__.py": "import scipy"}
    assert set(names("import helpers, pkg", beside)) == {"numpy", "scipy"}
    assert names("import a", {"a.py": "import b, train", "b.py": "import a, polars"}) == ["polars"]


def test_what_lies_elsewhere_in_the_bundle_may_be_on_a_path_that_the_script_makes() -> None:
    text = "import sys\nsys.path.insert(0, 'src')\nimport mylib, numpy"
    assert names(text, {"src/mylib.py": "import x"}) == ["numpy"]
    assert names("import inner", {"src/inner/core.py": "import x"}) == []


def test_it_is_said_where_a_module_is_imported_first() -> None:
    assert needed({"train.py": "import os\n\nimport numpy\nimport numpy"}, "train.py") == {
        "numpy": Import("train.py", 3)
    }
    assert needed({}, "job:tabular") == {}


def test_some_packages_have_other_names_than_their_modules() -> None:
    assert [package(name) for name in ("cv2", "sklearn", "numpy")] == [
        "opencv-python-headless", "scikit-learn", "numpy"
    ]  # fmt: skip


@given(st.text())
def test_no_text_is_too_odd(text: str) -> None:
    needed({"train.py": text}, "train.py")
