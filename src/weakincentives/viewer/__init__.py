"""The viewer: shows recorded runs in a browser, or exports one as a single file."""

from weakincentives.viewer.page import export_run
from weakincentives.viewer.playground import AdapterChoice, Playground, Wanted
from weakincentives.viewer.server import Viewer, ViewerError

__all__ = ["AdapterChoice", "Playground", "Viewer", "ViewerError", "Wanted", "export_run"]
