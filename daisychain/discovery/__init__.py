"""Who is out there: mDNS, Tailscale and addresses typed by hand."""
