"""Files and documents: campaign, system, cell, plan, lease plan, record."""
