"""Parts of every answer in words: numbers, set-ups, workloads, costs, what is known and how surely."""
