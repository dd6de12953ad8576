"""`python -m campaign.cli`: the command without its script."""

from campaign.cli.main import main

main()
