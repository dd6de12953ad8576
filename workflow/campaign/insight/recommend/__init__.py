"""What to build: the measured configurations, and others that the same hosts and pool allow, weighed by what is asked for. Pure.

`objectives`: what can be asked for. `shape_enumeration`: what can be built. `candidates`: every possible answer with what it gives,
measured or predicted. `choice`: the choice, its ties, and the cells behind it. `document`: the answers as they are kept and shown.

Predictions come from a model of step times on hardware that was not measured: `observations` are the cells and links that it
is fitted to, `model` has its equations, `fit` its parameters with intervals and its error on configurations left out.
"""
