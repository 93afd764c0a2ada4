"""Charts, each described once: drawn by matplotlib in reports (`report.figures.draw`), by Vega in the app."""
