"""The generator that runs a prompt, how a run begins and ends, and what drives it."""
