"""Parts of every answer in words: numbers, set-ups, workloads, costs, evidence and its certainty."""
