"""Emulated control planes and an emulated Slurm cluster. Only the commands of the product import this package."""
