"""Pure decisions: shares, preflight, advice."""
