"""The three nouns of a campaign's YAML files (campaign, system, workload): their models, reading them, resolving them."""
