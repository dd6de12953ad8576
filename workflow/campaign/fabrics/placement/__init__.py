"""Choosing hosts and devices for a configuration: which banks there are, and which of their slots a lease gets."""
