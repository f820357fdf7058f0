"""What the agent and the command line start or import has no torch in it."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["tabular.prepare", "tabular.predict", "tabular.metrics", "demo.prepare", "folders"])
def test_no_torch(module):
    code = f"import sys, daisychain.jobs.{module}; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
