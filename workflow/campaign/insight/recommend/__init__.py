"""What to build: the measured configurations, and others that the same hosts and pool allow, weighed by what is asked for. Pure.

`objectives`: what can be asked for. `shape_enumeration`: what can be built. `candidates`: every possible answer with what it gives,
measured or predicted. `choice`: the choice, its ties, and the cells behind it. `document`: the answers as they are kept and shown.

Predictions come from `campaign.model`, the model of a step: `observations` are the cells that it is fitted to, `step_rows` makes
steps of them, and `step_model` fits it, knows its error on configurations that were left out, and predicts others.
"""
