"""A campaign as pieces of a paper in LaTeX: figures and tables of numbers."""
