"""How rows become visible: each sink stages where nobody reads, publishes in the finish transaction, and discards."""
