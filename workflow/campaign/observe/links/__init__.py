"""Links between the devices of a composition: measured, modelled, and compared with their expected rates."""
