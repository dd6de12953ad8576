"""Archives: a campaign in one file, with everything that its report needs and with checksums.

An archive contains nothing about the machine that made it. It is a zip file and a Workflow Run RO-Crate (schema `archive/3`). Its
members are `archive.json` (schema, SHA-256 of every member), `ro-crate-metadata.json`, `README.md`, `campaign.json` and `config/`
(the campaign as used, with its programs), the workflow, and the parts of the results directory that `layout.PARTS` lists. Every
byte is checked when an archive is read.
"""
