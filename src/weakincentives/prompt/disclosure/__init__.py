"""Progressive disclosure: the strategies by which a model opens summarized sections."""

from weakincentives.prompt.disclosure.open_sections import OpenAndHalt, OpenOrRead, OpenToFiles
from weakincentives.prompt.disclosure.read_sections import ReadSections
from weakincentives.prompt.disclosure.search_sections import (
    FoundSection,
    SearchSections,
    SearchSectionsParams,
    SearchSectionsResult,
)
from weakincentives.prompt.disclosure.strategy import (
    OpenSectionsParams,
    OpenSectionsResult,
    ReadSectionParams,
    ReadSectionResult,
)

__all__ = [
    "FoundSection",
    "OpenAndHalt",
    "OpenOrRead",
    "OpenSectionsParams",
    "OpenSectionsResult",
    "OpenToFiles",
    "ReadSectionParams",
    "ReadSectionResult",
    "ReadSections",
    "SearchSections",
    "SearchSectionsParams",
    "SearchSectionsResult",
]
