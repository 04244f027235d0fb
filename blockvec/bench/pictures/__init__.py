"""Pictures drawn from results on record."""
