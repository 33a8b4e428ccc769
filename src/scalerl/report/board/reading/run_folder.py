"""Follow one of our own run folders: what was added to its files since the last look."""

import json
from array import array
from collections.abc import Mapping
from typing import Any

from scalerl import store
from scalerl.errors import InputError, UserError
from scalerl.logs.axes import disagreement, preferred_axis
from scalerl.logs.series import Selection, Series, series_from
from scalerl.logs.table import make_table, with_gpus
from scalerl.report.board.columns import Array, Columns, number, short
from scalerl.report.board.reading.inside import Root, read_inside
from scalerl.report.board.reading.sources import Source
from scalerl.report.board.reading.tail import Tail
from scalerl.report.evaluations import Overtrained, counted, overtrained, pass_curves

_EVAL_KEYS = (
    "step", "attempt", "set", "gpu_hours", "flops", "tokens", "reward", "num_samples", "prompts_hash", "num_correct",
)  # fmt: skip
_MOST_PROMPTS = 5000
_MAX_JSON = 4 << 20
_AXES = ("gpu_hours", "flops", "tokens", "step")
_MOST_SPENT = 500


class RunFollower:
    """The state of one run folder, brought up to date by `poll`."""

    def __init__(self, source: Source) -> None:
        self.source = source
        folder, root = source.path, source.root
        self._metrics = Tail(folder / store.METRICS, root)
        self._evals = Tail(folder / store.EVALS, root)
        self._samples = Tail(folder / store.SAMPLES, root)
        self._objects = {name: _JsonFile(source, name) for name in (store.RECIPE, store.STATUS, store.ENV)}
        self._status: Mapping[str, Any] = {}
        self._columns = Columns()
        self._eval_rows: list[tuple[int, store.Row]] = []
        self._counts: dict[int, list[int]] = {}
        """Right answers per problem, by the place of the row."""
        self._origins: dict[int, float] = {}
        self.sample_offsets = array("Q")
        self.evals_version = 0
        """Counts the changes of the evaluations: a new value calls for a new fit."""
        self.more = False
        """Whether a file has not been read to its end yet."""

    def poll(self) -> bool:
        """Read what was added; return whether anything changed."""
        changed = [self._read_metrics(), self._read_evals(), self._read_samples()]
        changed += [file.poll() for file in self._objects.values()]
        # It changes without its file when the run's process is killed.
        before, self._status = self._status, store.current_status(self._objects[store.STATUS].value)
        return any(changed) or self._status != before

    def _read_metrics(self) -> bool:
        added = self._metrics.read()
        self.more = added.more
        if added.restarted:
            self._columns.clear()
            self._origins.clear()
        for _, row in added.rows:
            if isinstance(row.get("step"), int | float):
                self._columns.append(row)
                self._note_origin(row, steps_before=1)
        return bool(added.rows) or added.restarted

    def _read_evals(self) -> bool:
        added = self._evals.read()
        if added.restarted:
            self._eval_rows.clear()
            self._counts.clear()
        for offset, row in added.rows:
            if isinstance(row.get("step"), int | float):
                kept = {key: row[key] for key in _EVAL_KEYS if key in row}
                counts = kept.pop("num_correct", None)
                if isinstance(counts, list) and len(counts) <= _MOST_PROMPTS and all(map(_is_count, counts)):
                    self._counts[offset] = counts
                self._eval_rows.append((offset, kept))
                self._note_origin(row, steps_before=0)
        changed = bool(added.rows) or added.restarted
        self.evals_version += changed
        return changed

    def _read_samples(self) -> bool:
        added = self._samples.read()
        if added.restarted:
            del self.sample_offsets[:]
        self.sample_offsets.extend(offset for offset, _ in added.rows)
        return bool(added.rows) or added.restarted

    def _note_origin(self, row: Mapping[str, Any], steps_before: int) -> None:
        attempt = row.get("attempt")
        if isinstance(attempt, int):
            origin = float(row["step"]) - steps_before
            self._origins[attempt] = min(self._origins.get(attempt, origin), origin)

    # What the folder says at this moment

    @property
    def recipe(self) -> Mapping[str, Any]:
        return self._objects[store.RECIPE].value

    @property
    def hours(self) -> str:
        """What to call the hours that its devices were held."""
        return "CPU-hours" if self._objects[store.ENV].value.get("device") == "cpu" else "GPU-hours"

    @property
    def status(self) -> tuple[str, str]:
        usual = "unknown" if self.recipe or self._eval_rows else "waiting"
        return str(self._status.get("status", usual)), str(self._status.get("reason", ""))

    @property
    def changed_at(self) -> float:
        """When one of its files was last written to; 0 before there is any."""
        return max(tail.changed_at for tail in (self._metrics, self._evals, self._samples))

    @property
    def num_skipped(self) -> int:
        """Lines of its files that could not be used."""
        return self._metrics.num_skipped + self._evals.num_skipped + self._samples.num_skipped

    def columns(self) -> dict[str, Array]:
        """Return the numbers over the steps, of the rows that count."""
        return self._columns.arrays(self._origins)

    def series(self, columns: Mapping[str, Array]) -> tuple[list[Series], str]:
        """Return the curves of its evaluations, one for each set, and why there are none."""
        placed = store.counting_rows(self._eval_rows, ("step", "set"), self._origins)
        if not placed:
            return [], "No evaluation yet."
        axis = self.axis(columns)
        try:
            rows = [(f"byte {offset}", row) for offset, row in placed]
            table = with_gpus(make_table(self.source.path, "run", rows, y="reward", apart=("set",)), None)
            return series_from([table], Selection(x=axis if axis in table.columns else None)), ""
        except InputError as fault:
            return [], str(fault)

    def eval_rows(self) -> list[store.Row]:
        """Return the evaluations that count."""
        return [row for _, row in store.counting_rows(self._eval_rows, ("step", "set"), self._origins)]

    def _counted(self) -> dict[str, list[store.Row]]:
        """Return the evaluations with right answers per problem, by set."""
        sets: dict[str, list[store.Row]] = {}
        for offset, row in store.counting_rows(self._eval_rows, ("step", "set"), self._origins):
            if offset in self._counts:
                sets.setdefault(str(row.get("set", "")), []).append({**row, "num_correct": self._counts[offset]})
        return sets

    def overtrained(self) -> list[Overtrained]:
        found = [overtrained(rows, name) for name, rows in self._counted().items()]
        return [each for each in found if each is not None]

    def passes(self) -> list[dict[str, Any]]:
        """Return pass@k over the steps, one entry for each set that was sampled more than once."""
        out = []
        for name, rows in self._counted().items():
            if curves := pass_curves(rows):
                steps = [row["step"] for row in counted(rows)[0]]
                out.append({"set": name, "step": steps, "pass": {str(k): short(each) for k, each in curves.items()}})
        return out

    def axis(self, columns: Mapping[str, Array]) -> str:
        """Return the column of compute: as the recipe says, else GPU-hours, or FLOPs where time per FLOP changed."""
        forecast = self.recipe.get("forecast")
        chosen = forecast.get("compute", "auto") if isinstance(forecast, dict) else "auto"
        if chosen in _AXES:
            return str(chosen)
        return preferred_axis(_spent_rows(columns))

    def uneven_time(self, columns: Mapping[str, Array]) -> float:
        return disagreement(_spent_rows(columns))

    def end_compute(self, columns: Mapping[str, Array]) -> float | None:
        """Return the compute at the end of the budget, at the pace so far; None where it is not known."""
        budget = self.recipe.get("budget")
        limits = budget if isinstance(budget, dict) else {}
        shares = [
            float(columns[column][-1]) / number(limits[name])
            for name, column in store.BUDGET_COLUMNS.items()
            if number(limits.get(name)) > 0 and column in columns and len(columns[column])
        ]
        spent = columns.get(self.axis(columns))
        share = max(shares, default=0.0)
        return float(spent[-1]) / share if share > 0 and spent is not None and len(spent) and spent[-1] > 0 else None

    @property
    def max_lag(self) -> float | None:
        """The largest lag that the recipe allows for a group, where it has a limit."""
        pipeline = self.recipe.get("pipeline")
        value = number(pipeline.get("max_lag")) if isinstance(pipeline, dict) else float("nan")
        bounds_every_group = isinstance(pipeline, dict) and pipeline.get("waits_for") != "generators"
        return value if value >= 0 and bounds_every_group else None

    def remedies(self) -> dict[str, tuple[str, ...]]:
        """Return the settings of its recipe that can help against alarms."""
        from scalerl.config import Recipe, remedies

        try:
            return remedies(Recipe.model_validate_json(json.dumps(dict(self.recipe))))
        except (UserError, ValueError):
            return {}


def _spent_rows(columns: Mapping[str, Array]) -> list[dict[str, float]]:
    hours, flops = columns.get("gpu_hours"), columns.get("flops")
    if hours is None or flops is None:
        return []
    # Of a long run only some rows: the two change slowly.
    every = max(len(hours) // _MOST_SPENT, 1)
    pairs = zip(hours[::-every].tolist(), flops[::-every].tolist(), strict=True)
    return [{"gpu_hours": spent_hours, "flops": spent_flops} for spent_hours, spent_flops in pairs]


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


class _JsonFile:
    """A small JSON object that may be replaced as a whole."""

    def __init__(self, source: Source, name: str) -> None:
        self._path, self._root = source.path / name, source.root
        self._seen: tuple[int, int, int] | None = None
        self.value: dict[str, Any] = {}

    def poll(self) -> bool:
        try:
            status = self._path.stat()
            seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        except OSError:
            seen = None
        if seen == self._seen:
            return False
        self._seen = seen
        before, self.value = self.value, _object(self._path, self._root)
        return before != self.value


def _object(path: Any, root: Root) -> dict[str, Any]:
    data = read_inside(path, root, _MAX_JSON)
    try:
        value = json.loads(data) if data is not None else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
