"""A campaign as pieces of a paper in LaTeX: figures, tables of numbers, methods, and the artifact appendix."""
