"""Network interfaces: what kind each is, whether it can carry a chain, and which one to take.

All of it is pure: the facts come from machine/interfaces.py, the answer is a NIC and a verdict.
"""

from daisychain.machine.nics.addresses import is_public
from daisychain.machine.nics.choice import asked, choose
from daisychain.machine.nics.kinds import classify, describe
from daisychain.machine.nics.raw import Interface, Machine
from daisychain.machine.nics.verdicts import judge

__all__ = ["Interface", "Machine", "asked", "choose", "classify", "describe", "is_public", "judge"]
