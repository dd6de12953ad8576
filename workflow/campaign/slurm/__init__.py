"""Slurm: asking it, and telling it, what a campaign needs. Cheap to import: waiting processes on a login node live here."""
