"""The run folder: what is written there and how it is read back."""
