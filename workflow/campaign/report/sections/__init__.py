"""Sections of the report page, in words for the template."""
