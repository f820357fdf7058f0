"""The control channel: typed JSON messages over WebSockets over TLS 1.3."""
