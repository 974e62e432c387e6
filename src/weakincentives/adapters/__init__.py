"""One subpackage per provider; each imports its vendor's SDK only when an adapter is made."""
