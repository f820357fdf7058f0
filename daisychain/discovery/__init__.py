"""Who is out there: mDNS and addresses typed by hand."""
