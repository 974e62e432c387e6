"""File search: the provider finds passages in uploaded files."""

from weakincentives.tools.failure import HostedToolFailure
from weakincentives.tools.file_search.config import FileSearchConfig
from weakincentives.tools.file_search.factory import FileSearchSection, file_search_tool
from weakincentives.tools.file_search.filter import AllOf, AnyOf, Comparison, FileFilter
from weakincentives.tools.file_search.output import FileCitation, FilePassage, FileSearchResult

__all__ = [
    "AllOf",
    "AnyOf",
    "Comparison",
    "FileCitation",
    "FileFilter",
    "FilePassage",
    "FileSearchConfig",
    "FileSearchResult",
    "FileSearchSection",
    "HostedToolFailure",
    "file_search_tool",
]
