"""BlockVector: a tall matrix of a few columns, its storage, products and arithmetic."""
