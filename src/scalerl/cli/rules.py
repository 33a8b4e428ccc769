"""scalerl more replay-rule: apply a stop rule to logs of finished runs."""

from dataclasses import asdict

from scalerl.cli import options as opt
from scalerl.cli.console import show
from scalerl.cli.curves import Common, read, shares_options
from scalerl.cli.options import option
from scalerl.errors import InputError


@shares_options("plot", "explain", "method", "alone", "run_sd")
def replay_rule(
    common: Common,
    rule: str = option(
        "RULE", "Conditions such as 'p_worth < 0.1 or p_reach(0.7) < 0.05', joined by and, or.", default="p_worth < 0.1"
    ),
    patience: int = option("N", "Forecasts in a row for which the rule must hold.", default=2, min=1),
    give_up_after: int | None = option(
        "N", "Evaluations after which a run without a rise may be ended. Unset: never.", check=opt.positive
    ),
) -> None:
    """Show when a stop rule would have ended finished runs, the reward it would have lost and the compute it saves.

    [dim]scalerl more replay-rule old_runs/ --rule "p_worth < 0.1"[/dim]

    See also: docs/from-trl.md for rules in a trainer.
    """
    from scalerl.callbacks.replay import replay
    from scalerl.callbacks.rules import StopRule
    from scalerl.forecast.report.document import TERMINAL, Section, grid, plain, render, say
    from scalerl.forecast.report.numbers import compute_text, fixed
    from scalerl.forecast.report.options import check_one_axis, unit_of

    stop_rule = StopRule(rule, give_up_after)
    series, options = read(common)
    usable = [data for data in series if not data.problem and len(data.compute)]
    if not usable:
        raise InputError(f"no usable curve among {len(series)}; the first, {series[0].name}: {series[0].problem}")
    check_one_axis(usable, "runs must be on one axis of compute, so that savings can be added")
    replayed = [replay(data, stop_rule, patience=patience, options=options) for data in usable]
    rows = [
        (
            each.name,
            "" if each.stopped_at is None else f"{compute_text(each.stopped_at)} of {compute_text(each.compute)}",
            "" if each.num_points is None else str(each.num_points),
            "" if each.lost is None else fixed(3)(each.lost),
            f"{each.saved / each.compute:.0%}",
        )
        for each in replayed
    ]
    stopped = [each for each in replayed if each.lost is not None]
    answer = say(
        "replayed",
        rule=rule,
        num_stopped=len(stopped),
        num=len(replayed),
        lost=max((each.lost or 0.0 for each in stopped), default=0.0),
        saved=sum(each.saved for each in replayed) / sum(each.compute for each in replayed),
    )
    unit = unit_of(usable[0])
    heads = ("curve", f"stopped at ({unit})", "points", "reward lost", "compute saved")
    blocks = [block for block in (answer, grid("replay", heads, rows)) if block is not None]
    document = [Section(key="replay", title="", blocks=tuple(blocks))]
    content = {"rule": rule, "curves": [asdict(each) | {"lost": each.lost, "saved": each.saved} for each in replayed]}
    show("replay-rule", common.as_json, plain(content), lambda: [render(document, TERMINAL)])
