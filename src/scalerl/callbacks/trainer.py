"""ForecastCallback: the forecast of a run inside a transformers or TRL trainer.

    forecast = ForecastCallback(stop="little to gain")
    trainer = GRPOTrainer(..., callbacks=[forecast])
    forecast.bind(trainer)       # logs forecast/... to whatever the trainer reports to
    trainer.train()

In transformers 5 this callback runs after those that report, and gets no reference to the trainer. Without `bind`, its
numbers go only into the trainer's state (trainer_state.json) and its sentence to the terminal; `bind` also reports
them. Fits run in a worker process, so no step waits for one.
"""

import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from scalerl.callbacks.forecast import FEWEST_REWARDS, Forecast, is_due, make_forecast
from scalerl.callbacks.live_forecast import FIRST_FIT
from scalerl.callbacks.rules import PATIENCE, Ready, StopRule, Test
from scalerl.errors import UsageError, WorkerDied
from scalerl.forecast.report.words import text
from scalerl.forecast.report.workers import Workers

try:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_callback import ExportableState
except ModuleNotFoundError as error:
    raise ImportError(
        f"ForecastCallback needs transformers ({error.name} is missing): pip install transformers, or trl"
    ) from None

EVAL_REWARDS = ("eval_reward", "eval_rewards/mean")
TRAINING_REWARDS = ("reward", "rewards/mean")
COMPUTES = ("step", "tokens", "flops", "hours")


class ForecastCallback(TrainerCallback, ExportableState):
    """Forecasts where a run will level off, at every evaluation or, before the first one, from training rewards."""

    def __init__(
        self,
        budget: float | None = None,
        *,
        compute: str | Callable[[Any, dict[str, Any]], float] = "step",
        metric: str | None = None,
        stop: Ready | Test | None = None,
        patience: int = PATIENCE,
        give_up_after: int | None = None,
        bounds: tuple[float, float] | None = (0.0, 1.0),
        quiet: bool = False,
        final_wait_s: float = 5.0,
    ) -> None:
        """`budget` is the compute at the end of the run, in the unit of `compute`; by default that of max_steps.

        `compute` is step, tokens, flops or hours, or a function of the trainer's state and the logged values. `metric`
        is the logged reward to forecast; by default it is eval_reward, and the training reward until the first
        evaluation. `stop` is "little to gain", "past its peak" or a function of the `Forecast`. It ends training when
        it has held for `patience` consecutive forecasts, but never before the reward has risen, unless `give_up_after`
        evaluations have passed. If a reward is outside `bounds`, the fit has no bounds. At the end of training the
        callback waits for the last forecast, at most `final_wait_s`.
        """
        if isinstance(compute, str) and compute not in COMPUTES:
            raise UsageError(f"compute is {compute!r}, but must be {', '.join(COMPUTES)} or a function")
        if patience < 1:
            raise UsageError(f"patience must be at least 1, not {patience}")
        self.budget = budget
        self.compute = compute
        self.metric = metric
        self.patience = patience
        self.bounds = bounds
        self.quiet = quiet
        self.final_wait_s = final_wait_s
        self.forecast: Forecast | None = None
        """The latest forecast."""
        self.stop_reason: str | None = None
        """Why the rule ended training; None if it did not."""
        self._rule = None if stop is None else StopRule(stop, give_up_after)
        self._evaluations: list[tuple[float, float]] = []
        self._rewards: list[tuple[float, float]] = []
        self._num_fitted = 0
        self._num_holding = 0
        self._pending: Future[Forecast | None] | None = None
        self._trainer: weakref.ref[Any] | None = None
        self._workers: Workers | None = None
        self._began_at = time.monotonic()
        self._is_logging = False

    def bind(self, trainer: Any) -> "ForecastCallback":
        """Report forecasts through this trainer; add the callback to it if needed."""
        self._trainer = weakref.ref(trainer)
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        return self

    # What transformers calls

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._began_at = time.monotonic()
        self._evaluations.clear()
        self._rewards.clear()
        # A resumed trainer has the rows of earlier steps.
        for row in state.log_history:
            self._take(row, row.get("step", 0), None)
        if not self.quiet and state.is_world_process_zero:
            rewards = f"; before the first evaluation, with {FEWEST_REWARDS} logged training rewards"
            begin = f"forecasts begin with evaluation {FIRST_FIT}"
            print(begin + rewards * (self.metric is None), flush=True)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if self._is_logging or logs is None:
            return
        if state.is_world_process_zero:
            self._take(logs, state.global_step, state)
            if self._is_due():
                self._submit(state)
        if args.world_size > 1 and self._rule is not None:
            self.stop_reason = _from_first_process(self.stop_reason)
        self._stop_if_asked(control)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._pending is not None and self._pending.done():
            self._collect(state)
        # Several processes must stop at the same step, on which they agree when they log.
        if args.world_size == 1:
            self._stop_if_asked(control)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._workers is None:
            return
        until = time.monotonic() + self.final_wait_s
        while self._pending is not None and time.monotonic() < until:
            try:
                self._pending.result(timeout=max(until - time.monotonic(), 0.0))
            except TimeoutError:
                break
            except WorkerDied:
                pass
            self._collect(state)
        self._workers.__exit__()
        self._workers = None
        self._pending = None

    def state(self) -> dict[str, Any]:
        """Return the state that transformers saves in trainer_state.json, with the reason of a stop."""
        return {
            "args": {
                "budget": self.budget,
                "compute": self.compute if isinstance(self.compute, str) else "step",
                "metric": self.metric,
                "stop": None if self._rule is None else self._rule.name,
                "patience": self.patience,
                "give_up_after": None if self._rule is None else self._rule.give_up_after,
            },
            "attributes": {"stop_reason": self.stop_reason},
        }

    # Rewards

    def _take(self, logs: dict[str, Any], step: int, state: Any) -> None:
        """Add the reward of a log, if it contains one."""
        evaluated = _number(logs, (self.metric,) if self.metric else EVAL_REWARDS)
        trained = None if self.metric else _number(logs, TRAINING_REWARDS)
        if evaluated is None and trained is None:
            return
        spent = self._spent(logs, step, state)
        if spent is None or spent < 0:
            return
        if evaluated is not None:
            if self._rewards and not self._evaluations:
                self._num_fitted = self._num_holding = 0
                if state is not None and not self.quiet:
                    print(text("switched", {"step": step}), flush=True)
            self._evaluations.append((spent, evaluated))
        elif trained is not None:
            self._rewards.append((spent, trained))

    def _spent(self, logs: dict[str, Any], step: int, state: Any) -> float | None:
        if callable(self.compute):
            return None if state is None else float(self.compute(state, logs))
        if self.compute == "step":
            return float(step)
        if self.compute == "hours":
            return None if state is None else (time.monotonic() - self._began_at) / 3600
        names = ("num_tokens", "num_input_tokens_seen") if self.compute == "tokens" else ("total_flos",)
        logged = _number(logs, names)
        if logged is None and state is not None:
            logged = float(state.num_input_tokens_seen if self.compute == "tokens" else state.total_flos)
        return logged

    def _end_compute(self, state: Any) -> float | None:
        """Return the compute at the end of the run: the given budget, or that of the last step at the pace so far."""
        points = self._evaluations or self._rewards
        if self.budget is not None or not state.max_steps or not state.global_step or not points:
            return self.budget
        if self.compute == "step":
            return float(state.max_steps)
        return points[-1][0] * state.max_steps / state.global_step

    # Fits

    def _is_due(self) -> bool:
        if self._pending is not None:
            return False
        is_training = not self._evaluations
        return is_due(len(self._evaluations or self._rewards), self._num_fitted, is_training=is_training)

    def _submit(self, state: Any) -> None:
        if self._workers is None:
            self._workers = Workers(1, retry_here=False)
        points = self._evaluations or self._rewards
        self._num_fitted = len(points)
        unit = self.compute if isinstance(self.compute, str) else "compute"
        is_training = not self._evaluations
        call = partial(make_forecast, bounds=self.bounds, unit=unit, is_training=is_training)
        self._pending = self._workers.submit(call, list(points), self._end_compute(state))

    def _collect(self, state: Any) -> None:
        """Take a finished forecast, and start the next one if there are new rewards."""
        assert self._pending is not None
        try:
            forecast = self._pending.result()
        except (WorkerDied, OSError, EOFError):
            forecast = None
        self._pending = None
        # Drop a forecast from training rewards that finishes after the first evaluation.
        if forecast is not None and not (forecast.is_training and self._evaluations):
            self.forecast = forecast
            self._report(forecast, state)
            self._judge(forecast, state)
        if self._is_due():
            self._submit(state)

    def _report(self, forecast: Forecast, state: Any) -> None:
        if not self.quiet:
            print(f"forecast at step {state.global_step}: {forecast.text}", flush=True)
        self._log(forecast.metrics(), state)

    def _log(self, values: dict[str, Any], state: Any) -> None:
        trainer = self._trainer() if self._trainer is not None else None
        if trainer is None:
            state.log_history.append({**values, "step": state.global_step})
            return
        # Logging resets should_log, which another callback may just have set.
        was_due = trainer.control.should_log
        self._is_logging = True
        try:
            # Not trainer.log: TRL's would also send the means that it is still collecting.
            Trainer.log(trainer, dict(values))
        finally:
            self._is_logging = False
            trainer.control.should_log = was_due

    def _judge(self, forecast: Forecast, state: Any) -> None:
        if self._rule is None:
            return
        self._num_holding = self._num_holding + 1 if self._rule.holds(forecast) else 0
        if self._num_holding < self.patience or self.stop_reason is not None:
            return
        self.stop_reason = text("rule_holds", {"rule": self._rule.name, "step": state.global_step})
        self._log({"forecast/stop_reason": self.stop_reason}, state)
        # A run without checkpoints saves only this.
        state.stateful_callbacks[type(self).__name__] = self.state()
        if not self.quiet:
            print(self.stop_reason, flush=True)

    def _stop_if_asked(self, control: Any) -> None:
        if self.stop_reason is not None:
            control.should_training_stop = True


def _number(logs: dict[str, Any], names: tuple[str | None, ...]) -> float | None:
    for name in names:
        value = logs.get(name) if name is not None else None
        if isinstance(value, int | float) and not isinstance(value, bool) and value == value:
            return float(value)
    return None


def _from_first_process(reason: str | None) -> str | None:
    """Return the value of the first process in all processes of a distributed run."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return reason
    values = [reason]
    dist.broadcast_object_list(values, src=0)
    return values[0]
