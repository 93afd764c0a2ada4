"""Rendering: tables, CSV, JSON, Markdown, HTML. The only place that rounds."""
