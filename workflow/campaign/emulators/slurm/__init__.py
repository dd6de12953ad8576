"""A whole Slurm on emulated hosts of one Linux machine: for tests, demonstrations and learning."""
