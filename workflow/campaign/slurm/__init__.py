"""Slurm: its commands, their output, and the requests of a campaign. Cheap to import, for processes that wait on login nodes."""
