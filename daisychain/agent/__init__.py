"""The one background process on every node."""
