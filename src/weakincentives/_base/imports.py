"""Late imports: package fronts that load a name on first use, and packages that come with an extra."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import ModuleType


def lazy_front(package: str, modules: Mapping[str, Iterable[str]]) -> Callable[[str], object]:
    """A `__getattr__` for a package front; `modules` maps each submodule to the names that it defines.

    __getattr__ = lazy_front(__name__, {"host": ["HostFilesystem", "HostSnapshot"]})
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(f"{package}.{home}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return load


def require_extra(module: str, extra: str, user: str) -> None:
    """Raise unless `module` is installed, without importing it. `user` names what needs it."""
    from importlib.util import find_spec

    try:
        found = find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise missing_extra(module, extra, user)


def import_extra(module: str, extra: str, user: str) -> ModuleType:
    """Import a module that comes with an extra, or say how to install it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise
        raise missing_extra(module, extra, user) from error
    except (ImportError, OSError) as error:
        package = module.partition(".")[0]
        cure = library_cure(error)
        if not cure:
            cure = f"the package '{package}', which is installed, but cannot be loaded: {error}"
        raise UnloadableExtraError(f"{user} needs {cure}", name=package) from error


class UnloadableExtraError(ImportError):
    """An installed package cannot be loaded, mostly because a system library is missing."""


# The packages of shared libraries that wheels expect on the system: of Debian and Ubuntu, of Fedora, of Alpine.
_SYSTEM_PACKAGES = {
    "libgomp": ("libgomp1", "libgomp", "libgomp"),
    "libstdc++": ("libstdc++6", "libstdc++", "libstdc++"),
    "libgcc_s": ("libgcc-s1", "libgcc", "libgcc"),
    "libopenblas": ("libopenblas0", "openblas", "openblas"),
    "libpq": ("libpq5", "libpq", "libpq"),
    "libssl": ("libssl3", "openssl-libs", "libssl3"),
    "libz": ("zlib1g", "zlib", "zlib"),
}
_LIBRARY = re.compile(
    r"(?P<linux>lib[\w+-]+)\.so[\w.]*: cannot open shared object file|(?P<named>lib[\w+-]+) library not found"
    r"|Library not loaded: (?:\S*/)?(?P<mac>[\w+.-]+)|(?P<windows>DLL load failed)"
)


def library_cure(error: BaseException) -> str:
    """The system library that is missing and how to install it; empty if the error is another one."""
    match = _LIBRARY.search(str(error))
    if match is None:
        return ""
    if match["windows"]:
        return f"a DLL that is not installed, often of the Microsoft Visual C++ Redistributable ({error})"
    library = match["linux"] or match["named"] or match["mac"]
    packages = _SYSTEM_PACKAGES.get(library.partition(".")[0])
    missing = f"the system library '{library}', which is not installed"
    if match["mac"]:
        return f"{missing}; run brew install {library.partition('.')[0]}"
    if packages is None:
        return f"{missing}; install the package of your system that has it"
    debian, fedora, alpine = packages
    return f"{missing}; run apt-get install {debian}, dnf install {fedora} or apk add {alpine}"


def missing_extra(module: str, extra: str, user: str) -> ModuleNotFoundError:
    package = module.partition(".")[0]
    return ModuleNotFoundError(
        f"{user} needs the package '{package}'; run pip install 'weakincentives[{extra}]'", name=package
    )


def public_names(front: Mapping[str, object], *lazy: str) -> list[str]:
    """The `__all__` of a package front: what it imports as itself (`import X as X`), and what it loads on first use."""
    hidden = {"TYPE_CHECKING", "annotations", "lazy_front", "public_names"}
    public = {name for name, value in front.items() if not (name.startswith("_") or isinstance(value, ModuleType))}
    return sorted(public - hidden | {*lazy})
