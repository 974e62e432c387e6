"""What the library costs, measured: `python -m bench [topic ...]`.

A topic is a module of this package with a function `rows()` that yields `Row`s (`bench.row`), measured with
`bench.measure`. A topic that takes minutes sets `SLOW = True` and runs only when it is named.
"""
