"""Ready-made tools for prompts."""

from weakincentives.contrib.tools.vfs import VfsLimits, VfsToolsSection

__all__ = ["VfsLimits", "VfsToolsSection"]
