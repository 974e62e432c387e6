"""How requests reach a vendor: encoded conversations, lean connections, retries, streams."""
