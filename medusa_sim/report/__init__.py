"""Answers in words, tables, pages and figures; numbers are rounded only here.

A command has a folder, with the same modules in it:

    `screen`     the answer for a terminal: what was asked, the answer, tables, facts by label, warnings
    `sentences`, `tables`, `warnings` are parts of it
    `values`     the same numbers in full precision, for JSON, CSV and Parquet
    `python`     the answer in Python and in a notebook
    `page`       the report: the screen as blocks, with pictures

All fill in a `report.screen.Screen`. `blocks` are what a page is made of: `screen_blocks` makes them of a
screen, `document` writes them. `words` are phrases that commands share; `charts` describe what `figures` and
the app draw.

How sure an answer is stands in four of the words: `basis` (what each part rests on), `standing` (how near a
set-up is to measured ones), `measured` (the public figure nearest to it), `caveats` (the end of a report).
"""
