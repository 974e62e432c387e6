"""Sections built from the public API alone."""
