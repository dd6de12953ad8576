"""Sections of the report page, as texts for the template."""
