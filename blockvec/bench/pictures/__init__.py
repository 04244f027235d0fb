"""Pictures of recorded results: `draw.draw` chooses one; the other modules draw one table each."""
