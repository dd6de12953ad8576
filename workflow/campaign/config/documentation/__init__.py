"""The generated reference: JSON Schemas of all files, and pages with their keys as tables."""
