"""The stages of a plan: their methods, their order and what joins their results."""
