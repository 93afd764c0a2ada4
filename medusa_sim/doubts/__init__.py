"""What a scenario rests on that was not measured for it, in sentences, and how near the measured rows are."""
