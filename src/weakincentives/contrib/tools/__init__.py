"""Ready-made sections with tools."""

from weakincentives.contrib.tools.vfs import VfsLimits, VfsToolsSection

__all__ = ["VfsLimits", "VfsToolsSection"]
