"""Measure what a fleet did in each step, for metrics.jsonl, and count the devices that a run holds."""

from typing import Any

from scalerl.rollout.fleet.fleet import Fleet


class FleetMeter:
    """Reads a fleet between two steps."""

    def __init__(self, fleet: Fleet, *, slots: int, gpus_per_generator: int, learner: tuple[str, ...]) -> None:
        """`slots` are those of one generator; `learner` are the learner's devices, as "node/device"."""
        self.fleet = fleet
        self._slots = slots
        self._gpus_per_generator = gpus_per_generator
        self._learner = learner
        self._pace = fleet.total.pace
        self._num_lost = 0

    def row(self) -> dict[str, Any]:
        """Return the columns of a step: what the generators did since the last call."""
        before, self._pace = self._pace, self.fleet.total.pace
        pace = self._pace - before
        losses = self.fleet.losses[self._num_lost :]
        self._num_lost += len(losses)
        row: dict[str, Any] = {
            "generators/ready": self.fleet.num_ready,
            "generators/slots": self._slots,
            "generators/chunks": pace.chunks,
            "generators/busy_s": pace.busy_s,
            "generators/active_mean": pace.active / max(pace.chunks, 1),
            "generators/copy_s": pace.copy_s / max(pace.copies, 1),
            "generators/lost": len(losses),
        }
        if losses:
            row["lost"] = [{"generator": loss.number, "kind": loss.kind, "reason": loss.reason} for loss in losses]
        return row

    @property
    def devices(self) -> list[str]:
        """The devices that the run holds. A generator that has not reported yet holds as many as it asked for."""
        held = [*self._learner, *self.fleet.devices]
        num_starting = self.fleet.num_generators - self.fleet.num_ready
        return held + [f"starting/gpu:{number}" for number in range(num_starting * self._gpus_per_generator)]
