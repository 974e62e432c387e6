"""Ground of every package, with nothing of the library below it but the standard library."""
