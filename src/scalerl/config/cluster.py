"""Settings of the cluster that a run is spread over."""

from scalerl.config.parts import Settings


class ClusterSettings(Settings):
    address: str = ""
    """Ray cluster that the generators run on: "auto" for the one this machine belongs to, "HOST:PORT", or "local" to
    start Ray on this machine for this run; empty: no Ray, generators are threads of this process."""
