"""What drafting costs, apart from what it gains: one module a drafter, one registry."""
