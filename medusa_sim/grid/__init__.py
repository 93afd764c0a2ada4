"""A scenario's grid, priced: batches x lengths x ways of drafting, and every quantity of its cells."""
