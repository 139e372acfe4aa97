"""The fleet file: fleet.yaml to typed, frozen values and back.

Says only what the user asked for and whether it is well formed. It must not look at machines, files or the network;
what needs them is checked by the planner, with facts that the caller brings.
"""
