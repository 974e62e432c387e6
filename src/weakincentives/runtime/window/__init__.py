"""The part of a conversation that is sent, and what shortens it."""
