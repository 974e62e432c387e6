"""One tool call: checked, permitted, asked about, run as a transaction, and recorded."""
