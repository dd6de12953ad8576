"""Slurm: its commands, their output, and the requests of a campaign.

The modules that processes on login nodes need are cheap to import.
"""
