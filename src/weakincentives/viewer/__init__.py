"""The viewer: shows recorded runs in a browser, or exports one as a single file."""

from weakincentives.viewer.page import export_run
from weakincentives.viewer.playground import AdapterChoice, Playground
from weakincentives.viewer.server import Viewer, ViewerError

__all__ = ["AdapterChoice", "Playground", "Viewer", "ViewerError", "export_run"]
