"""Disclosure: the strategies by which a model opens sections, the tools they offer, and rankers that find sections."""
