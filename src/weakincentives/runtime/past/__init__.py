"""What happened in a run or conversation, and the way back."""
