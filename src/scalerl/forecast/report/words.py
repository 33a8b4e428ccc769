"""Every sentence of the predictive half: WORDS has one entry for each kind of `Say`, and nothing else words anything.

An entry is a template (`wording.py` has its format specs), or a function that returns the sentence.
"""

from enum import StrEnum
from functools import partial

from scalerl.forecast.curves import Action, Answer, State, tails
from scalerl.forecast.curves.decide import LIKELIER, SURE, UNLIKELY
from scalerl.forecast.logs.frame import listed
from scalerl.forecast.logs.plan import BUILT
from scalerl.forecast.report.wording import Values, Words, filled, join_names


class Level(StrEnum):
    """How much a sentence matters."""

    ANSWER = "answer"
    WHY = "why"
    WARNING = "warning"
    DETAIL = "detail"
    """Shown when somebody asks for an explanation."""


def text(kind: str, values: Values) -> str:
    """Return one or two sentences."""
    return filled(WORDS[kind], values)


def level_of(kind: str) -> Level:
    """Return how much a sentence matters: it says why, unless the table of levels says otherwise."""
    return LEVEL_OF.get(kind, Level.WHY)


def _missing_points(values: Values) -> str:
    parts = ["Too early to judge {name}: it has {num:g} usable points and needs {needed:g}"]
    if values["has_start"]:
        parts.append(", the start included")
    if values["num_left_out"]:
        parts.append("; {num_left_out} are left out by {option:skip-before} or {option:fit-until}")
    return filled("".join([*parts, "."]), values)


def _doubling(values: Values) -> str:
    """Say whether to go on: what doubling the compute should add, and what it costs where that is known."""
    action = Action(values["action"])
    parts = [ACTIONS[action].capitalize(), ": doubling the compute should add {doubling:+r}"]
    if values.get("price") is not None:
        parts.append(" for {price:$}")
    parts.append("; the chance that it adds more than {worth:w} is {p_worth:p}")
    if action == Action.OPEN:
        parts.append(f" (above {LIKELIER:.0%} to go on, below {UNLIKELY:.0%} to stop)")
    return filled("".join([*parts, "."]), values)


ACTIONS = {Action.GO_ON: "go on", Action.STOP: "stop", Action.OPEN: "inconclusive"}


def to_do(values: Values) -> str:
    """Say in a few words what to do with a run; nothing of one that was fitted by the paper's procedure."""
    state = values["state"]
    action = values["action"]
    if state == State.PAST_PEAK:
        place = "of step {checkpoint:,.0f}"
        if values["checkpoint"] is None:
            place = "at {fall.last_good:c} {unit}"
        return filled(f"choose the checkpoint {place}", values)
    if state == State.TOO_EARLY and values.get("is_over"):
        return "evaluate more often, or train longer: too early to judge"
    if state in TO_DO:
        return TO_DO[state]
    is_settled = action == Action.OPEN and values["settled_at"] is not None
    settled = ""
    if is_settled:
        settled = ": about {settled_at:g} times the compute may settle it"
    return filled(ACTIONS[action] + settled, values)


TO_DO = {State.TOO_EARLY: "wait: too early to judge", State.FLAT: "check the recipe"}


def column(values: Values) -> str:
    """Name a column; of one that the user did not name, say how it was made, or what else could have been chosen."""
    rule = values["rule"]
    name = values["column"]
    how: list[str] = []
    if rule == "counted":
        how.append(filled("the number of the row; name a column with {option:x}", values))
    elif rule in BUILT:
        how.append("built from the log's times")
    elif rule != "option":
        if values["others"]:
            how.append(f"also there: {listed(list(values['others']))}")
        few = [f"{other} ({rows})" for other, rows in values["too_few"].items()]
        if few:
            how.append(f"too few rows in {listed(few)}")
    if how:
        return f"{name} ({'; '.join(how)})"
    return name


def _columns(values: Values) -> str:
    """Say which columns are compute and reward, and how to override those that were detected."""
    endings = {
        ("x", "y"): " Both detected; override with {option:x} and {option:y}.",
        ("x",): " Compute was detected; override with {option:x}.",
        ("y",): " The reward was detected; override with {option:y}.",
    }
    return filled("Compute: {compute}. Reward: {reward}." + endings.get(tuple(values["detected"]), ""), values)


def ceiling_or_peak(values: Values) -> str:
    return filled("{ceiling:r}" if values["fall"] is None else "peak {fall.peak:r}", values)


def needed(values: Values) -> str:
    """Return the compute that reaches a reward: "never" only if that is as sure as an end of the interval."""
    if values["compute"] is not None:
        return filled("{compute:c}", values)
    is_sure = values["p_never"] is None or values["p_never"] >= tails(values["level"])[1]
    if is_sure:
        return "never"
    return filled("not known: P(never) {p_never:p}", values)


def advice(values: Values) -> str:
    """Say what comparing two recipes, or all of them, comes to: one of them, either, or no clear winner."""
    if values["winner"] is not None:
        return filled("choose {winner}", values)
    if values["answer"] == Answer.OPEN:
        return "no clear winner"
    return str(values["answer"])


def exponents(values: Values) -> str:
    """Return the exponents of two curves; "-" where there is neither."""
    if any(values["exponents"] or ()):
        return filled("{exponents.0:.2f} / {exponents.1:.2f}", values)
    return "-"


def _settled(values: Values) -> str:
    ways: list[str] = []
    if values["times"] is not None:
        ways.append("about {times:g} times the compute of both ({p_times:p})")
    if values["seeds"] is not None:
        ways.append("about {seeds} seeds of each ({p_seeds:p})")
    if not ways:
        return filled("Even 16 times the compute or 32 seeds are unlikely to settle {a} against {b}.", values)
    return filled("What may settle {a} against {b}, and how likely: " + ", or ".join(ways) + ".", values)


def _either(values: Values) -> str:
    rest = ": at {at:c} {unit} they differ by less than the threshold ({worth:w}) with probability {probability:p}."
    first = "Any of {names:or} will do"
    if len(values["names"]) == 2:
        first = "Either {names:or} will do"
    return filled(first + rest, values)


def _open(values: Values) -> str:
    """Say why no recipe is chosen: the number that decided, with the one that was needed."""
    leads = "No clear winner at {at:c} {unit}: {name} leads, with a {p_best:p} chance of being best"
    if values["p_best"] < SURE:
        return filled(leads + f" ({SURE:.0%} needed).", values)
    return filled(leads + ", but an expected regret of {loss:r} (below {worth:w} needed).", values)


def _chart_note(values: Values) -> str:
    level = f"{values['level']:.0%}"
    sentences = ["Filled points were fitted, hollow ones were not. Lines are dashed beyond what was fitted."]
    if values["has_bands"]:
        sentences.append(f"Bands hold the curve with probability {level}, paler ones a new evaluation.")
    if values["has_cut_bands"]:
        sentences.append("A band that would leave the chart ends there.")
    if values["has_bars"]:
        sentences.append(f"Bars at the right are the ceilings with their {level} intervals.")
    if values["has_marks"]:
        sentences.append("Diamonds mark forecasts that were asked for, or the checkpoint before a fall.")
    return " ".join(sentences)


def _picture_note(values: Values) -> str:
    more = ""
    if values["more"]:
        more = "; {more} more have no name here"
    return filled(
        "Intervals and bands hold {level:.0%}: of the curve, and paler of a new evaluation; bars at the right are "
        "ceilings; hollow points were not fitted" + more,
        values,
    )


# Alarms ---------------------------------------------------------------------------------------------------------------

ALARMS = {
    "truncated": "{value:.0%} of completions reach their length limit and are cut off",
    "mismatch": "generator and learner differ by a KL of {value:.2g}",
    "backend": (
        "generator and learner differ by a KL of {value:.2g} at equal weights (largest ratio {ratio:.3g}), so their "
        "arithmetic differs"
    ),
    "no_verdict": "{value:.0%} of completions have no verdict",
    "skipped": "{value:.0%} of the last steps changed no weight, because loss or gradient was not finite",
    "empty": "{value:.0%} of the last batches had nothing to train on",
    "solved": "{value:.0%} of {whose} are solved and no longer asked",
    "entropy": "the entropy of the policy is {value:.2g}, so that all answers to a problem are nearly the same",
    "unused_tools": "the agent stops calling its tools: {value:.0%} of the calls that it once made",
    "lag": "answers are trained on up to {value:.3g} steps after they were begun, more than {limit:g}",
    "grader_error": "the grader {subject} failed: {detail}",
    "environment_error": "the environment {subject} failed: {detail}",
    "stalled": "training stood still for {value:.0f} s, far beyond the usual time of a step",
}
REMEDIES = {
    "truncated": "; above {limit:.0%}, runs tend to become unstable: leave more room{keeping}{names}",
    "mismatch": "{set_names}; with another engine or rounded weights, compute the head in FP32 at both ends",
    "backend": "{set_names}; the paper's remedy is an FP32 head at both ends (model.fp32_head)",
    "no_verdict": " and are not trained on: {why}",
    "skipped": ": check the loss function if it is your own, lower optimizer.lr, or set model.dtype = float32",
    "empty": ", so the model does not change: {why}",
    "solved": "; with few of them left, the reward can fall: take more problems, or ask all of them{names}",
    "entropy": (
        ": lower optimizer.lr, raise rollout.temperature, keep the entropy up{names}, or stop here if the reward is as "
        "high as it can be"
    ),
    "unused_tools": (
        "; if the reward falls with them, look at what calls return, lower optimizer.lr, or keep the entropy up{names}"
    ),
    "lag": ": generate with fewer slots, or push weights more often",
    "stalled": "; this time is not on the compute axis (time/stalled_s)",
}
NO_VERDICT = {
    "grader/no_answer": "the reference answers cannot be read by this grader",
    "grader/timeout": "grading takes too long (grading.timeout_s, grading.cpu_limit_s)",
    "grader/crash": "the grader's process dies",
    "grader/memory": "grading needs more memory (grading.memory_limit_mb)",
    "grader/error": "the grader raises an exception",
    "environment/no_answer": "conversations end without an answer or a reward",
    "environment/timeout": (
        "steps of the environment take too long (task.environment.step_s, task.environment.step_cpu_s)"
    ),
    "environment/crash": "the environment's process dies",
    "environment/memory": "the environment needs more memory (task.environment.step_memory_mb)",
    "environment/error": "the environment raises an exception",
}
"""Why there is no verdict, by the column that counts it."""
WHY_EMPTY = {
    "unrewarded": (
        "{subject} gave 0 to all of {num_answers:,} answers; if these should be worth something, it does not read them "
        "as the model writes them: {shown_answers}"
    ),
    "all_wrong": "no answer was correct, so take easier problems or a stronger model, or begin with scalerl sft",
    "all_right": "every answer was correct, so take harder problems",
    "truncated": "most completions are cut off at their length limit",
    "no_verdict": "the grader gave no verdict on any answer",
    "mixed": "in every group the answers were all correct or all wrong, so raise pipeline.completions_per_group",
}


def _alarm(kind: str, values: Values) -> str:
    """Return the words of an alarm: what is so, then what can help, or how it has changed; on a page, when it was."""
    subject = values["subject"]
    whose = "a task's training problems"
    if subject:
        whose = f"the training problems of {subject}"
    fact = ALARMS[kind].format(**values, whose=whose)
    if values["state"] == "over":
        return f"Resolved: {fact}."
    cause = values["cause"]
    names = " or ".join(values["remedies"])
    if kind == "empty":
        why = WHY_EMPTY.get(cause or "mixed")
    else:
        why = NO_VERDICT.get(cause or "")
    answers = ", ".join(f"{answer!r} for {reference!r}" for answer, reference in values["answers"])
    remedy = REMEDIES.get(kind, "").format(
        **values,
        why=(why or "see grader/ in metrics.jsonl").format(**values, shown_answers=answers),
        names=f" ({names})" if names else "",
        set_names=f": set {names}" if names else "",
        keeping=", or train on cut answers" if "filter." in names else "",
    )
    return f"{_capital(fact)}{remedy}.{_when(values) if 'run' in values else ''}"


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _when(values: Values) -> str:
    """Return when an alarm began and ended, and of which run it is, as a sentence of its own."""
    time = "Throughout the run"
    if values["ended"] is not None:
        time = f"From step {values['began']:g} to step {values['ended']:g}"
    elif values["began"] is not None:
        time = f"Since step {values['began']:g}"
    place = ""
    if values["run"]:
        place = f" in {values['run']}"
    return f" {time}{place}."


def _untrained(values: Values) -> str:
    reasons = {"num_skipped": "a loss or gradient that was not finite", "num_empty": "an empty batch"}
    why = join_names([f"{values[key]:,} had {reason}" for key, reason in reasons.items() if values[key]])
    return filled(
        f"Not trained: none of {{num_steps:,}} steps changed a weight ({why}). {_went(values)}, which is noise.", values
    )


def _went(values: Values) -> str:
    over = "last evaluation" if values["num_last"] == 1 else "mean of the last {num_last}"
    return "{name} went from {first:.3f} to {last:.3f} (" + over + ")"


def _gain(result: str, values: Values) -> str:
    """Say what a run changed on an evaluation set."""
    return filled(result + ": " + _went(values) + ": {low:+.3f} to {high:+.3f} (90% interval).", values)


def _forecast(values: Values) -> str:
    """Say what a forecast is on one line."""
    state = values["state"]
    parts: list[str] = []
    if state != State.TOO_EARLY:
        parts.append("{state}: ")
    parts.append("{to_do}")
    if state == State.FLAT:
        parts.append("; a rise of {noticed:r} or more would have shown")
    if values["ceiling"] is not None:
        parts.append("; ceiling {ceiling:r}")
    if values["doubling"] is not None and state != State.PAST_PEAK:
        parts.append("; doubling the compute should add {doubling:+r}")
        parts.append(" (a chance of {p_worth:p} of more than {worth:w})")
    if values["end"] is not None:
        parts.append("; at the end of the budget {end:r}")
    parts.append("; from {num} training rewards" if values["is_training"] else "; from {num} evaluations")
    return filled("".join(parts), values)


def _continue(values: Values) -> str:
    money = " ({money:$})"
    if values["money"] is None:
        money = ""
    return filled("Continue {arms}: {cost:c} {unit}" + money + " in all.", values)


WORDS: dict[str, Words] = {
    # What was decided about a log: which lines and files were taken
    "lines_taken": "{num} of {num_lines} lines record a step; the step is {origin}.",
    "cut_lines": "{num} lines are cut off or hold no row and are left out; the first is line {line}.",
    "rows_counted": "The log does not name its steps, so compute is the number of the record, from 1 to {num}.",
    "longest_history": "{file} is read, the longest of {num_files} histories.",
    "other_logs": "The folder holds one run in several logs: {file} is read, with {num} values of {y}; not {others}.",
    "contained": "{files} are left out: they repeat the first part of {file}.",
    "evaluations_apart": "Rows are marked as training or evaluation: the evaluations are read as {columns}.",
    "units": "{columns}: read in the unit that its name says.",
    "one_column_per_run": "The table has one column per run: {columns}.",
    # what is a run
    "attempts": (
        "{place} holds {num} attempts that each start over: they are separate curves (keep one with --where "
        "attempt=N, or pool with {option:seed attempt})."
    ),
    "short_attempts": "Short attempts of {place} ({num_rows} rows) are left out: the run started over after them.",
    "superseded": (
        "The step goes back from {from_step:g} to {to_step:g} at {place}, as when a run resumes (restarts: {times}): "
        "{num} rows are left out. If they belong to another run, name the column of runs with {option:seed} or "
        "{option:by}."
    ),
    "steps_come_back": (
        "The step of {place} does not rise at {num} of {num_rows} values, which are read as further measurements of "
        "a step. If several runs wrote this log, pass the log of each."
    ),
    "files_unused": "Files without a curve are left out: {names}.",
    "files_beside": "Logs beside run folders are not read: {names}.",
    "files_beyond": "{num} files are not read: at most {most} are read per folder. Name the others, or give a pattern.",
    "files_joined": "{names} are one run: each continues the one before ({option:by file} keeps them apart).",
    "seeds_by_name": "By their names, {names} are runs of one curve ({option:by {column}} keeps them apart).",
    "steps_per_epoch": "{step} starts again in each of {num} values of {coarse}, so the steps are counted on.",
    "runs_joined": "{names} of column {column} are one run: each starts at a later step than the one before it.",
    "step_by_values": "No name says what counts steps: {step} is read, whose whole numbers rise from row to row.",
    "reward_by_values": "No name says which column is the reward: {y} is read, the only one that can be scores.",
    "reward_of_all": "{y} is read, since all logs have it.",
    "rewards_differ": "The logs have no reward in common ({names}): their answers cannot be compared.",
    "no_reward": "{names} have no {y} and are left out.",
    "runs_apart": "Each value of {columns} is a curve of its own ({option:seed COLUMN} makes them runs of one).",
    # which rows count
    "held_values": "{num} of {num_rows} rows repeat the value of the row before; each value counts once.",
    "start_at_zero": (
        "The start is {start:.4g}, the mean at compute {compute:g} ({num} rows), taken as the model before training; "
        "{option:start} sets another."
    ),
    "start_is_late": (
        "The first row is at compute {compute:g}, not before training, so it counts as a point and the start is fitted."
    ),
    "start_from_evaluation": "The start, {start:.4g}, is {column} before training ({option:start fit} leaves it out).",
    "far_cells": "{y} is {value:.4g} at {place}, far outside all other values: {num} cells are left out as mistakes.",
    "answers_averaged": ("{num} rows are single answers ({per_step:g} per step): the reward of a step is their mean."),
    "lower_is_better": "By its name, lower {y} is better, but larger values are taken for better: give 1 - {y}.",
    "values_fall": "{y} falls while compute grows: if lower is better, give 1 - {y} instead.",
    # in which unit
    "percent": "{y} runs from {low:.4g} to {high:.4g} and is read as per cent.",
    "own_scale": "{y} runs from {low:.4g} to {high:.4g} and is fitted without limits ({option:y-scale} sets some).",
    "cpu_time": "The run had no GPU: gpu_hours are hours of CPU time.",
    "shared_hours": "Runs of the study shared a device, so their hours cannot be trusted.",
    "counted_in_flops": (
        "Time per FLOP changed during the run: compute is counted in FLOPs ({option:x gpu_hours}: in hours)."
    ),
    "problem": "{name} has no curve: {problem}",
    "holds_for": "For {names}:",
    "several_runs": "{num} runs",
    "columns": _columns,
    "explain": "Add {option:explain} for the details.",
    "in_set": "On {set}:",
    # Where a run stands
    "too_early_points": _missing_points,
    "too_early_computes": (
        "Too early to judge {name}: it was evaluated at {num:g} different computes and needs {needed:g}."
    ),
    "too_early_beginning": (
        "Too early to judge {name}: its log begins at {num:c} {unit}, in the middle of the run, so the start is "
        "unknown. Give the reward before training with {option:start}."
    ),
    "flat": "{name} is flat: a rise of {noticed:r} or more would have shown.",
    "rising": "{name} is rising: it has reached {share:%} of its total gain.",
    "levelling_off": "{name} is levelling off: it has reached {share:%} of its total gain.",
    "past_peak": (
        "{name} is past its peak: it has fallen by {drop:r} from {peak:r}; the chance that the fall exceeds "
        "{worth:w} is {probability:p}."
    ),
    "checkpoint_step": (
        "Choose the checkpoint of {name} at step {checkpoint:,.0f}, the last evaluation before the fall; "
        "{num_after} came after it."
    ),
    "checkpoint_compute": (
        "Choose the checkpoint of {name} at {last_good:c} {unit}, the last evaluation before the fall; "
        "{num_after} came after it."
    ),
    "checkpoint_saved": "The last saved checkpoint of {name} before the fall is that of step {step:,.0f}.",
    "ceiling": "Its ceiling is {ceiling:r}.",
    "dip": "A dip of {depth:r} at {compute:c} {unit} was regained later.",
    "doubling": _doubling,
    "flat_doubling": "Check the recipe before spending more: nothing has risen.",
    "open_settled": "About {settled_at:g} times the compute settles this with probability {p_settled:p}.",
    "open_unsettled": "Even 16 times the compute is unlikely to settle this.",
    "weak_backtest_half": (
        "Do not rely on this forecast of {name}: fitted on the first half of the run, it missed the second. Its "
        "{level:%} interval held {coverage:%} of {num_points} later points."
    ),
    "weak_backtest_held_out": (
        "Do not rely on this forecast of {name}: its {level:%} interval held {coverage:%} of {num_points} points "
        "that were held out."
    ),
    "forecast_at": "At {compute:c} {unit} a new evaluation should give {reward:r}.",
    "unused_start": "The start of {name}, {start:r}, is not used: the form {form} has none.",
    "smallest_change": ("{name}: a difference below {change:r} between two evaluations is within noise (90%)."),
    "worth": "Threshold: differences below {worth:w} do not count; override with {option:worth}.",
    "price_needs_hours": (
        "No cost: {option:price} needs compute in GPU-hours, and here it is {unit}. {option:gpus N} builds GPU-hours "
        "from the times of a log."
    ),
    "far": "{compute:c} {unit} is {times:,.0f} times the compute measured: forecasts that far are untested.",
    "column": column,
    # In cells of tables
    "to_do": to_do,
    "ceiling_or_peak": ceiling_or_peak,
    "needed": needed,
    "advice": advice,
    # Below charts
    "chart_note": _chart_note,
    "picture_note": _picture_note,
    "legend_p_best": "P(best) {p_best:p}",
    "legend_peak": "peak {peak:r} at {last_good:C}",
    "legend_curve": "ceiling {ceiling:r}, exponent {exponent:.2f}, midpoint {midpoint:c}",
    "no_curve_yet": "There is no curve yet.",
    "nothing_to_compare": "There are no two curves to compare.",
    "without_curve": "Without a curve: {names}.",
    # Which recipe
    "take": (
        "Choose {name}: at {at:c} {unit} it is best with probability {p_best:p} (expected regret {loss:r}, threshold "
        "{worth:w})."
    ),
    "either": _either,
    "open": _open,
    "settle": _settled,
    "default_budget": "The budget is 4 times the largest compute measured; override with {option:at}.",
    "best_checkpoint": "Compared at their best checkpoint, because they have fallen since: {names}.",
    "assumed_spread": (
        "With one run each of {names}, the spread between seeds is unknown; a standard deviation of up to {sd:r} is "
        "assumed ({option:run-spread})."
    ),
    "shared_exponents": "Exponents at one ceiling of {ceiling:r}: {exponents}.",
    "same_run": "{a} and {b} hold the same points: one is the other, or a part of it.",
    "different_prompts": "{names} were evaluated on different prompts{of_set} and are not compared.",
    "different_units": "The curves count compute in different units ({units}) and are not compared.",
    "different_rewards": "The curves are of different rewards ({names}) and are not compared.",
    "unlike_rewards": "The curves are of different rewards ({names}): the answer holds only if these measure the same.",
    "alone_in_set": "{name} is the only curve of its evaluation set and is not compared.",
    "axes_disagree": "The answer depends on the unit of compute: {answers}. Use the unit you pay for.",
    "axis_answer": "{answer} by {labels}",
    "axes_agree": "The answer is the same in {axes}.",
    "uneven_steps": (
        "A step costs up to {ratio:.1f} times as much ({axis}) in one curve as in another: do not compare them by step."
    ),
    "pooled": (
        "{num} curves share a reward and start close together, so they are fitted as one task; {option:alone} fits "
        "each by itself."
    ),
    "equal_curves": "{names} have the same reward at every point: what differs between them had no effect.",
    # The paper's procedure
    "paper": "By the paper's procedure {name} has A = {ceiling:r}, B = {exponent:.2f} and C_mid = {midpoint:c} {unit}.",
    "paper_edge": "For {name}, {names} lies on the edge of the grid of the paper's procedure.",
    "paper_ceiling": (
        "By the paper's rule {winner} is the better of {a} and {b}: its ceiling is higher by {difference:r}, more than "
        "{margin:w}."
    ),
    "paper_exponent": (
        "By the paper's rule {winner} is the better of {a} and {b}: their ceilings differ by {difference:r}, no more "
        "than {margin:w}, and at one ceiling its exponent is {larger:.2f}, the other {smaller:.2f}."
    ),
    "paper_equal": "By the paper's rule {a} and {b} are equal.",
    # Back-tests
    "not_scored": "{name}, {part}: not scored, because {num} points before it are too few.",
    "nothing_after": "{name}, {part}: not scored, because no point lies after it.",
    # What a reader must know about runs
    "fault": "{problem}",
    "fault_of": "{name}: {problem}",
    "no_recipe": "{folder} has no recipe.json: what the run was set to is not known.",
    "no_metrics": "{folder} has no rows in metrics.jsonl: whether it stayed stable is not known.",
    "evaluations_lost": (
        "{folder}/evals.jsonl ends at step {evaluated:g} of a run of {trained:g}: the evaluations after that are lost, "
        "and its curve ends there."
    ),
    "line_left_out": "{file}, line {first}: not a JSON object, and left out.",
    "lines_left_out": "{file}, line {first} and {num} more: not JSON objects, and left out.",
    "waiting": "Not started yet: {names}.",
    "skipped": "{arm} was not run: {skipped}.",
    "not_finished": "{run} did not finish ({status}): its curve stands as far as it goes.",
    "repeated": (
        "{run} repeated {num_steps} steps after an interruption ({gpu_hours:.3g} {hours}, {share:.1%} of its FLOPs): "
        "they are counted as compute."
    ),
    "stood_still": "{run} stood still for {seconds:.0f} s, which is not counted in its {hours}.",
    "different_environments": "The environments of the runs differ in {keys}.",
    "seeds_joined": "{runs} differ only in their seed: they are runs of {arm}.",
    "shared_device": "Jobs shared a device, so {hours} are not to be trusted: compute is counted in FLOPs.",
    "uneven_pace": (
        "One run took {size:.1f} times as long as another of its arm for the same FLOPs, so {hours} are not to be "
        "trusted: compute is counted in FLOPs."
    ),
    **{f"alarm_{kind}": partial(_alarm, kind) for kind in ALARMS},
    # The board
    "unreadable": "{name} cannot be read: {fault}.",
    "no_link_outside": "{name} is not read: it holds a link to a file outside the folder that was named.",
    "not_regular": "{name} is not read: it is not a regular file.",
    "too_long": (
        "{name} is {size:,.0f} MB long and is not followed: logs of up to {most:,.0f} MB are. Cut it, or use scalerl "
        "forecast."
    ),
    "too_many_curves": "Only the first {most} of {num} curves are fitted.",
    "too_many_sources": "Only the first {most} runs and logs are followed; {num} more are not.",
    "outside_study": "{arm}, seed {seed}: its folder lies outside the study and is not read.",
    "no_evaluation": "No evaluation yet.",
    "not_started": "Not started yet.",
    "never_evaluated": "The run has ended without an evaluation.",
    "stands": "{name}: {state}, {to_do}.",
    "watched": "{num} runs and logs in {paths}.",
    # What training changed
    "gain_rose": partial(_gain, "Learned"),
    "gain_fell": partial(_gain, "Got worse"),
    "gain_within_noise": partial(_gain, "No change beyond noise"),
    "gain_no_update": _untrained,
    # Plans
    "plan_no_curve_yet": "No arm has a curve yet: continue all of them.",
    "plan_either": (
        "{names:or} will do equally well: at {at:c} {unit} they differ by less than the threshold ({worth:w})."
    ),
    "plan_continue": _continue,
    "plan_worth_most": "Best next step: another stage of {name} (expected improvement of the choice: {value:.2g}).",
    "plan_at_target": "At the target: {names}.",
    "plan_chosen": "Chosen, and not continued: {names}.",
    "plan_not_chosen": "Stop {names}: another arm is chosen.",
    "plan_tells_most": "More compute on {names} would be most informative.",
    "plan_tells_little": "Stop {names}: more compute is unlikely to change the choice.",
    "plan_no_curve": "Too few points to judge: {names}.",
    "plan_past_peak": "Stop {names}: past the peak, more compute does not help.",
    "plan_budget": "The budget is spent: no compute is left for {names}.",
    # Transfers and sealed forecasts
    "transfer": "{size} from a start of {start:r} should level off at {ceiling:r}, half-way at {midpoint:c}.",
    "transfer_at": "At {compute:c}: {reward:r}.",
    "transfer_learnt": "Learned from {names}, whose ceilings scatter by {scatter:r} about the law.",
    "transfer_far": "The target is more than ten times as large as the largest sibling: this is a guess.",
    "transfer_not_smaller": "{name} is left out: it is not smaller than the target.",
    "transfer_state": "{name} is left out: it is {detail}.",
    "transfer_form": "{name} is left out: a {detail} form fits it.",
    "score_held": "{level:%} intervals held {share:%} of {num} later points.",
    "score_nothing": "No forecast covers anything measured since.",
    "score_changed": "{name}: the log no longer holds the data that the forecast was made from.",
    "score_missing": "{name} is not among the given logs.",
    # Stop rules and callbacks
    "forecast": _forecast,
    "rule_holds": "Training ends at step {step}: the stop rule {rule!r} holds.",
    "switched": "Step {step}: forecasts use evaluations from here on, not training rewards.",
}
LEVELS: dict[Level, tuple[str, ...]] = {
    Level.ANSWER: (
        "too_early_points", "too_early_computes", "too_early_beginning", "flat", "rising", "levelling_off", "past_peak",
        "ceiling", "doubling", "checkpoint_step", "checkpoint_compute", "forecast_at", "take", "either", "open",
        "no_curve_yet", "stands", "nothing_to_compare", "paper", "paper_ceiling", "paper_exponent", "paper_equal",
        "gain_rose", "gain_fell", "gain_within_noise", "gain_no_update", 
        "plan_no_curve_yet", "plan_either", "transfer", "transfer_at", "score_held", "score_nothing",
    ),
    Level.WARNING: (
        "far_cells",
        "axes_disagree", "different_environments", "different_prompts", "different_units", "equal_curves",
        "evaluations_lost", "far", "fault", "fault_of", "line_left_out", "lines_left_out", "no_link_outside",
        "no_metrics", "no_recipe", "not_finished", "not_regular", "outside_study", "paper_edge", "price_needs_hours",
        "problem", "same_run", "score_changed", "score_missing", "skipped", "too_long", "too_many_curves",
        "too_many_sources", "transfer_far", "uneven_steps", "unlike_rewards", "unreadable", "waiting",
        "weak_backtest_half", "weak_backtest_held_out",
    ),
    Level.DETAIL: (
        "assumed_spread", "shared_exponents", "smallest_change", "worth",
        # What was decided about a log and hardly changes the answer.
        "lines_taken", "rows_counted", "longest_history", "one_column_per_run", "short_attempts", "superseded",
        "files_joined", "runs_apart", "held_values",
        "start_at_zero", "start_from_evaluation", "cpu_time",
    ),
}  # fmt: skip
LEVEL_OF: dict[str, Level] = {}
for _level, _kinds in LEVELS.items():
    LEVEL_OF |= dict.fromkeys(_kinds, _level)
