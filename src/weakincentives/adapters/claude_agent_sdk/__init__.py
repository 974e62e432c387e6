"""The Claude Agent SDK: the real Claude Code CLI, with tools of ours that appear while it runs."""
