"""Freed memory is kept for the next step."""

import os
import platform
import subprocess
import sys

import pytest

from daisychain.machine.allocator import KEEP, keeping

STEPS = """
import resource
def step():
    block = bytearray(48 * 2**20)
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_what_the_owner_has_set_stays():
    assert keeping({"MALLOC_TOP_PAD_": "0", "HOME": "/h"}) == {**KEEP, "MALLOC_TOP_PAD_": "0", "HOME": "/h"}


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator")
def test_a_large_block_costs_no_page_faults_once_it_was_there():
    def faults(environment):
        done = subprocess.run(
            [sys.executable, "-c", STEPS], env=environment, capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    plain = {name: value for name, value in os.environ.items() if name not in KEEP}
    assert faults(plain) > 1000  # else the variables are of no use
    assert faults(keeping(plain)) < 100
