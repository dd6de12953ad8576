"""Modules that every package uses, such as errors, files, paths, wording, credentials, processes and accelerators."""
