"""Identity, invitations and pairing."""
