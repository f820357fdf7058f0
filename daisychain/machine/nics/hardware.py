"""Linux: what a network interface of hardware is, and whose hypervisor emulates it."""

import re

from daisychain.facts import NicKind
from daisychain.machine.nics.names import Sort
from daisychain.machine.nics.raw import Interface, Machine

_TETHER_DRIVERS = (
    "rndis_host", "ipheth", "cdc_mbim", "qmi_wwan", "huawei_cdc_ncm", "sierra_net", "hso", "iosm", "mtk_t7xx",
)  # fmt: skip
_MAYBE_TETHER = ("cdc_ether", "cdc_ncm", "cdc_eem", "cdc_subset")
"""They drive phones and plain USB Ethernet adapters; usbN and wwanN are what phones and modems are named."""
_TETHER_DEVTYPES = ("wwan", "bluetooth", "gadget")
_INFINIBAND = 32

_EMULATORS = {
    "virtio_net": "KVM",
    "vmxnet3": "VMware",
    "hv_netvsc": "Hyper-V",
    "vif": "Xen",
    "xen_netfront": "Xen",
    "ena": "Amazon",
    "gve": "Google",
}
_COPIES = ("e1000", "e1000e", "8139cp", "8139too", "pcnet32", "igb", "vlance", "r8169")
"""Drivers of real cards that hypervisors imitate: the firmware's vendor tells them apart."""

_VENDORS = (
    (r"innotek|virtualbox", "VirtualBox"),
    (r"vmware", "VMware"),
    (r"parallels", "Parallels"),
    (r"apple virtualization", "Apple"),
    (r"microsoft corporation.*virtual machine", "Hyper-V"),
    (r"amazon ec2", "Amazon"),
    (r"google", "Google"),
    (r"xen", "Xen"),
    (r"qemu|kvm|bochs", "KVM"),
)


def sort(interface: Interface, machine: Machine) -> Sort:
    """The kind of an interface that has a `device`."""
    shown = f"hardware, driver {interface.driver}" if interface.driver else "hardware"
    if interface.devtype in _TETHER_DEVTYPES:
        return "tether", f"{shown}, {interface.devtype}"
    if interface.driver in _TETHER_DRIVERS:
        return "tether", shown
    if interface.driver in _MAYBE_TETHER and re.fullmatch(r"(usb|wwan)\d+", interface.name):
        return "tether", f"{shown}, named as phones and modems are"
    if in_wsl2(machine) and interface.driver in ("", "hv_netvsc", "virtio_net"):
        return "wsl", f"{shown}, Microsoft's kernel"
    kind: NicKind = "ethernet"
    return kind, f"InfiniBand, {shown}" if interface.arp_type == _INFINIBAND else shown


def in_wsl2(machine: Machine) -> bool:
    """WSL 2 has a kernel of its own (5.15.153.1-microsoft-standard-WSL2); WSL 1 (4.4.0-19041-Microsoft) has no NAT."""
    return "-microsoft" in machine.kernel


def emulated(interface: Interface, machine: Machine) -> str:
    """Whose hypervisor shows this interface as hardware; empty for real hardware and where nothing tells."""
    vendor = next((whose for pattern, whose in _VENDORS if re.search(pattern, machine.vendor, re.IGNORECASE)), "")
    if interface.driver in _EMULATORS:
        return vendor or _EMULATORS[interface.driver]
    return vendor if interface.driver in _COPIES else ""
