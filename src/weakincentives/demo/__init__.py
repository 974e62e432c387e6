"""A support desk for a fictional product: the agent that `./run` shows."""
