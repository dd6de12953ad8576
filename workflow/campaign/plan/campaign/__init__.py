"""YAML files of a campaign (campaign, system, workload): reading, validation and resolution."""
