"""What a name alone tells: of products' own interfaces, of macOS's ports, of Windows' connections."""

import re

from daisychain.facts import NicKind

Sort = tuple[NicKind, str]
"""A kind and its evidence."""

_PRODUCTS: tuple[tuple[str, NicKind, str], ...] = (
    (r"docker\d+|docker_gwbridge|br-[0-9a-f]{12}", "container", "Docker"),
    (r"podman\d+|cni-podman\d+", "container", "Podman"),
    (r"(lxc|lxd|incus)br\d+", "container", "LXC"),
    (r"nerdctl.*", "container", "containerd"),
    (r"cni\d*|flannel.*|cali.*|cilium.*|kube-.*|nodelocaldns|weave|vxlan\.calico|lxc[0-9a-f_].*", "container",
     "Kubernetes"),
    (r"virbr\d+(-nic)?|vnet\d+", "hypervisor", "libvirt"),
    (r"mpqemubr\d+", "hypervisor", "Multipass"),
    (r"(tap|fwbr|fwpr|fwln)\d+[ip]\d+", "hypervisor", "Proxmox"),
    (r"vmnet\d+|vmware network adapter.*", "hypervisor", "VMware"),
    (r"vboxnet\d+|virtualbox host-only.*", "hypervisor", "VirtualBox"),
    (r"vmenet\d+|bridge1\d\d", "hypervisor", "macOS's virtual machines"),
    (r"vethernet.*", "hypervisor", "Hyper-V"),
    (r"tailscale\d*", "tailscale", "Tailscale"),
    (r"wg\d+|wg-.*|wireguard.*", "wireguard", "WireGuard"),
    (r"nordlynx", "wireguard", "NordVPN"),
    (r"cloudflarewarp", "tun", "Cloudflare WARP"),
    (r"zt[0-9a-z]{6,}|feth\d+|zerotier.*", "tun", "ZeroTier"),
    (r"ham\d+|hamachi.*", "tun", "Hamachi"),
    (r"gpd\d+|cscotun\d+|.*(anyconnect|globalprotect|fortinet|fortissl|pangp).*", "tun", "a company's VPN"),
    (r"openvpn.*|.*(tap-windows|wintun).*", "tun", "OpenVPN"),
)  # fmt: skip
"""(names, kind, whose): what no system describes any further. sysfs shows docker0 as any other bridge."""

_NAMES: tuple[tuple[str, NicKind], ...] = (
    (r"lo\d*|.*loopback.*", "loopback"),
    (r"utun\d+|ppp\d+|ipsec\d+|tun\d+|tap\d+|gif\d+|stf\d+", "tun"),
    (r"veth.*|venet\d+", "veth"),
    (r"macvlan.*|macvtap.*|ipvlan.*", "macvlan"),
    (r"br\d+|vmbr\d+|bridge\d+|br-lan|network bridge.*", "bridge"),
    (r"bond\d+|team\d+", "bond"),
    (r"vlan\d+|[^ ]+\.\d+", "vlan"),
    (r"wl.*|wi-?fi.*|ath\d+|ra\d+|ap\d+|awdl\d+|llw\d+|wireless.*|drahtlos.*|.*sans fil.*|.*inal.mbric.*", "wifi"),
    (r"local area connection\*.*|lan-verbindung\*.*", "wifi"),
    (r"ww.*|usb\d+|rndis\d*|rmnet.*|ccmni\d+|pdp_ip\d+|bnep\d+|cellular.*|mobil.*|.*bluetooth.*", "tether"),
    (r"eth\d+|en[opsx]\w+|em\d+|end\d+|ethernet.*|local area connection.*|lan-verbindung.*", "ethernet"),
    (r"以太网.*|イーサネット.*|이더넷.*", "ethernet"),
)  # fmt: skip
"""Names to go by only where the system doesn't describe the interface. macOS's en0 isn't here: it may be either.

'Local Area Connection* 1' (with a star) is what Windows calls the hidden adapters of Wi-Fi Direct.
"""

_PORTS: tuple[tuple[str, NicKind], ...] = (
    (r".*(iphone|ipad|bluetooth|android|pixel|galaxy).*", "tether"),
    (r".*(wi-?fi|airport).*", "wifi"),
    (r".*bridge.*", "bridge"),
)

_MACS: tuple[tuple[str, Sort], ...] = (
    ("0a:00:27", ("hypervisor", "VirtualBox's hardware address")),
    ("00:50:56:c0:00", ("hypervisor", "VMware's hardware address")),
)
"""What these give to the host's end of their networks, whatever the connection is called."""


def product(name: str) -> Sort | None:
    """Whose interface this is, for names that only one product gives."""
    found = ((kind, f"named as {whose} names its own") for pattern, kind, whose in _PRODUCTS if _is(pattern, name))
    return next(found, None)


def plain(name: str) -> Sort:
    """The kind that a usual name means; 'unknown' for any other."""
    kind = next((kind for pattern, kind in _NAMES if _is(pattern, name)), None)
    return (kind, "by its name only") if kind else ("unknown", "nothing tells what it is")


def port(name: str, label: str) -> Sort:
    """macOS: the kind of a hardware port. Apart from these few, all that networksetup lists are wired."""
    kind = next((kind for pattern, kind in _PORTS if _is(pattern, label)), None)
    if kind is None:
        kind = "ethernet" if _is(r"en\d+", name) else plain(name)[0]
    return kind, f"hardware port {label!r}"


def by_mac(mac: str) -> Sort | None:
    """The kind that a hardware address tells."""
    return next((sort for prefix, sort in _MACS if mac.startswith(prefix)), None)


def _is(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text, re.IGNORECASE | re.DOTALL) is not None
