"""How fast a model answers on given machines: one time model for planning, scaling and simulation.

Pure: no file, no clock, no network. ``work`` counts what a pass costs at the hardware's peak, ``constants`` says how
far from the peak real kernels are, ``serving`` turns both into TTFT and ITL under load, ``calibrate`` learns the
constants from measured rows. docs/concepts/prediction.md explains the formulas.
"""
