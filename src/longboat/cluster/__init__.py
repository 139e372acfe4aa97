"""The room that imports Ray: supervisors, agents, the fleet controller and node daemons. Tokens never pass through it.

Classes here are plain; each is wrapped into an actor or a deployment in one place (``serve_app.py``, ``actors.py``).
"""
