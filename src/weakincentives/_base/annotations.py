"""Annotations and signatures as far as they can be resolved: a name that is not defined is not an error yet.

From Python 3.14 on, annotations are evaluated when they are read, all those of a class or function together. So a name
that is imported for type checkers only, in one that nobody asks for, would fail for all.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations

    def class_annotations(cls: type) -> dict[str, Any]:
        return get_annotations(cls, format=Format.FORWARDREF)

    def signature_of(function: Callable[..., Any]) -> inspect.Signature:
        return inspect.signature(function, annotation_format=Format.FORWARDREF)

else:

    def class_annotations(cls: type) -> dict[str, Any]:
        """The annotations of the class itself, without those of its bases."""
        return inspect.get_annotations(cls)

    def signature_of(function: Callable[..., Any]) -> inspect.Signature:
        """The parameters of a function; raises what `inspect.signature` raises if it has no signature."""
        return inspect.signature(function)
