"""Functions of matrices by block recurrences."""
