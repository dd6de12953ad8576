"""Parts of a paper in LaTeX from a campaign: figures and tables of numbers."""
