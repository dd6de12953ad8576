"""A campaign in one file: everything that its report needs, with checksums, and nothing of the machine it was made on.

A zip file and a Workflow Run RO-Crate (schema `archive/3`): `archive.json` (schema, SHA-256 of every member),
`ro-crate-metadata.json`, `README.md`, `campaign.json` and `config/` (the campaign as used, with its programs), the workflow, and
the parts of the results directory that `layout.PARTS` names. Every byte is checked when it is read.
"""
