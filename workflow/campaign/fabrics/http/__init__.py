"""The one HTTP client of fabrics and host agents: hard time limits; an answer that was lost is told from a request never sent."""
