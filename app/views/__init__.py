"""Pages, one a module: widgets, one cached answer, charts."""
