"""This machine: its devices, its network interfaces, its speed."""
