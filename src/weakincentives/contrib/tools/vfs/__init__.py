"""Tools over the prompt's filesystem."""

from weakincentives.contrib.tools.vfs.limits import VfsLimits
from weakincentives.contrib.tools.vfs.section import VfsToolsSection

__all__ = ["VfsLimits", "VfsToolsSection"]
