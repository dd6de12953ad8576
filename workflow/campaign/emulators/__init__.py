"""Emulated control planes and an emulated Slurm cluster. Nothing in the product imports this room but its commands."""
