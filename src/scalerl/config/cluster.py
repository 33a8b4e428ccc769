"""Settings of the cluster that a run is spread over."""

from scalerl.config.parts import Settings


class ClusterSettings(Settings):
    address: str = ""
    """Ray cluster that generators and the learner's ranks run on: "auto" for the one this machine belongs to,
    "HOST:PORT", or "local" to start Ray on this machine for this run; empty: no Ray, generators are threads of this
    process and ranks are its child processes."""
