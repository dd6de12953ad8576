"""A practice inference server: GPT-2 with random weights behind the OpenAI interface. `python -m campaign.workloads.gpt_server`."""
