"""A read-only site of the results of all campaigns: what is planned, measured and running, filtered, drawn and compared.

`results_index`: the campaigns below a results root, live. `pages`: what the templates lay out. `application`: the requests.
Nothing here writes, composes or asks Slurm anything.
"""
