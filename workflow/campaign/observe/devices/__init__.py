"""A site's acceptance test: what each device of a composition does, step by step, and whether that is what it should do.

Processes on the devices measure (`rank`, and a module a step), `verdicts` judges, and `stage` starts, keeps and says.
"""
