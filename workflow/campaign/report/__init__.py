"""Figures and the report page, made from tables."""
