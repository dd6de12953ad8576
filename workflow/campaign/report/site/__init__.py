"""Static web site of the results of many campaigns: reports, comparisons, and the history of each cell.

`campaigns` makes a directory of the site from each results directory or archive. `history` collects cells that several campaigns
measured (pure). `pages` builds the contexts of the templates. `write` writes all files that changed.
"""
