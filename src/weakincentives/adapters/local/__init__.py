"""A small model inside this process: no key, no network."""

from weakincentives.adapters.local.adapter import LocalAdapter

__all__ = ["LocalAdapter"]
