"""Rendering: tables, CSV, JSON, Markdown, HTML. With `medusa_sim.figures` the only place that rounds."""
