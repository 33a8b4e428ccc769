"""The budget of a run: the share that is spent, and when the run ends."""

from collections.abc import Callable, Mapping

from scalerl.recipe.parts import BudgetSettings
from scalerl.runfolder.store import BUDGET_COLUMNS, share_spent
from scalerl.training.run.hooks import RunEnd


class Budget:
    """The limits of a run; the run ends at the first limit that it reaches."""

    def __init__(
        self,
        settings: BudgetSettings,
        spent: Callable[[], Mapping[str, float]],
        *,
        hours: str = "GPU-hours",
    ) -> None:
        """`spent` returns the columns of the last row; `hours` is the name of their unit."""
        self._spent = spent
        self._limits = {name: limit for name, limit in settings if limit is not None}
        self._units = {"steps": "steps", "gpu_hours": hours, "flops": "FLOPs"}

    @property
    def share(self) -> float:
        """The share of the budget that is spent, by the limit that will be reached first; the run ends at 1."""
        return share_spent(self._limits, self._spent())

    def at_end(self, axis: str) -> float | None:
        """Return the compute at the end of the budget, extrapolated from now; None before the first step."""
        return self._spent()[axis] / self.share if self.share > 0 else None

    @property
    def end(self) -> RunEnd | None:
        """Why the run ends here; None if it continues."""
        spent = self._spent()
        for name, limit in self._limits.items():
            if spent[BUDGET_COLUMNS[name]] >= limit:
                return RunEnd(kind="budget", reason=f"budget of {limit:,.8g} {self._units[name]} spent")
        return None
