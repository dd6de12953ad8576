"""A site of files over the results of many campaigns: reports, comparisons, and each cell over campaigns.

`campaigns`: results directories and archives, each made a directory of the site. `history`: cells that several campaigns
measured; pure. `pages`: what the templates lay out. `write`: all of it, but only what changed.
"""
