"""Composable Campaign: characterization campaigns on composable infrastructure."""

__version__ = "0.1.0"
