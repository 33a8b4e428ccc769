"""What the name of a column means: its role in a log, and how close it comes to a pass rate.

Only names are looked at here; plan.py looks at the values. Names are compared in lower case, with everything between
words as one underscore: `timing_s/step`, `Timing_s Step` and `timing_s_step` are one name.
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Literal, NamedTuple

from scalerl.forecast.logs.written import FACTORS

_NAMES = {
    # wandb's own _step counts rows and never falls; the trainer's falls when a run is resumed, and comes first.
    "step": """
        step global_step train_global_step trainer_global_step training_global_step progress_step train_step
        training_step trainer_step optimizer_step steps global_steps current_steps iteration iter it update
        iterations updates train_iteration training_iteration grpo_step rl_step global_step_max_steps checkpoint
        ckpt rollout_step timesteps_total timesteps time_total_timesteps total_timesteps time_iterations
        misc_total_timesteps total_env_interacts env_steps num_env_steps total_env_steps env_step agent_steps
        num_steps total_steps samples games frame frames _step
    """,
    "coarse": "episode episodes epoch episode_num total_episodes generation generations",
    "gpu_hours": "gpu_hours gpuhours compute_gpu_hours train_gpu_hours perf_gpu_hours",
    "flops": "flops compute_flops total_flops train_flops training_flops compute total_flos train_total_flos",
    "tokens": """
        tokens total_tokens num_tokens tokens_seen num_input_tokens_seen progress_total_tokens train_num_tokens
        train_total_tokens train_num_input_tokens_seen train_tokens
    """,
    "tokens_per_step": "perf_total_num_tokens progress_tokens tokens_per_step step_tokens",
    "cost": "cost cost_usd total_cost total_cost_usd dollars usd",
    "hours": """
        hours train_hours wall_hours elapsed_hours runtime_hours time_hours wall_time_hours elapsed_time_hours
        relative_time_hours time_elapsed_hours wall_clock_hours total_time_hours training_time_hours
        training_hours total_hours duration_hours walltime_hours
    """,
    "seconds_per_step": """
        time_total time_step time_step_s timing_step timing_s_step step_time train_step_time perf_time_per_step
        perf_step_time time_step_time timing_total time_per_step step_time_s total_step_time step_seconds
        iteration_time t_step
    """,
    "elapsed": """
        elapsed_s relative_time_process relative_time_wall _runtime runtime elapsed elapsed_time
        time_time_elapsed time_elapsed elapsed_seconds wall_clock_s
    """,
    "wall_clock": "wall_time _timestamp timestamp datetime date_time time created_at",
    "date": "date day",
    "num_samples": "eval_num_samples num_eval_samples num_samples",
    "seed": "seed random_seed train_seed",
    "run": """
        run run_name run_id run_uuid run_hash experiment experiment_name exp_name trial trial_id trial_name
    """,
    "arm": "recipe arm model config method variant algorithm algo",
    "set": "benchmark evaluation_set eval_set dataset test_set suite set",
    "split": "split phase mode stage subset set type kind event",
    "row": "index idx row row_number number no n i column_1 unnamed_0",
    # What a row of results is of, where nothing counts steps.
    "item": """
        problem problem_id question question_id qid query_id task_id prompt_id prompt_idx sample sample_id example
        example_id instance instance_id item item_id puzzle_id episode_id id uid uuid rank k fold bin layer layer_idx
        block head level difficulty params params_b params_m n_params num_params parameters parameters_b model_size
        size size_b context context_length context_len max_tokens sequence_length temperature top_p top_k threshold
        n_shots num_shots shots n_samples beam_size num_beams n_agents
    """,
    # A table with one metric per row.
    "metric": "tag metric metric_name metricname metric_key key name variable",
    "value": "value values metric_value metricvalue",
    # What trainers log beside the reward, under our keys.
    "reward/mean": """
        reward_mean reward train_reward critic_rewards_mean critic_score_mean reward_all_mean env_all_reward_total
        rewards_mean
    """,
    "reward/correct_frac": "reward_correct_frac env_all_correct solve_all correct",
    "loss/entropy": """
        loss_entropy entropy train_entropy actor_entropy entropy_all_mean entropy_mean optim_entropy actor_entropy_loss
    """,
    "loss/kl": "loss_kl mismatch_kl_all_mean mismatch_kl_mean rollout_corr_kl optim_kl_sample_train_v1",
    "loss/clip_frac": "loss_clip_frac clip_ratio_region_mean actor_pg_clipfrac clip_ratio is_masked_mean",
    "rollout/length_mean": """
        rollout_length_mean completions_mean_length train_completions_mean_length completion_length response_length_mean
        seq_len_all_mean decode_len_all_mean env_all_ac_tokens_per_turn
    """,
    "rollout/length_max": """
        rollout_length_max completions_max_length response_length_max seq_len_all_max decode_len_all_max
    """,
    "rollout/truncated_frac": """
        rollout_truncated_frac completions_clipped_ratio response_length_clip_ratio is_truncated_all_mean
        is_truncated_mean
    """,
    "rollout/lag_mean": """
        rollout_lag_mean off_policy_level_all_mean off_policy_level_mean fully_async_staleness_mean
    """,
    "rollout/lag_max": """
        rollout_lag_max off_policy_level_all_max off_policy_level_max async_level scheduler_async_level
    """,
    "optim/grad_norm": "optim_grad_norm grad_norm train_grad_norm actor_grad_norm",
    "time/step_s": "time_step_s timing_s_update_actor time_forward_backward time_train",
    "time/wait_s": """
        time_wait_s timing_s_gen time_wait_for_batch time_generate_completions time_sampling
    """,
    "time/push_s": "time_push_s timing_s_update_weights time_update_weights time_broadcast_weights",
    "time/whole_step_s": "time_whole_step_s step_time timing_s_step time_step time_total",
    "time/evaluation_s": "time_evaluation_s timing_s_testing",
    "time/checkpoint_s": "time_checkpoint_s timing_s_save_checkpoint",
}
ROLES = {role: tuple(names.split()) for role, names in _NAMES.items()}
"""What a column is for, and the names that say so, in the order in which they are tried: the one table of names."""
METRICS = tuple(role for role in ROLES if "/" in role)
"""What trainers log beside the step and the reward of evaluations; each name is our key of it."""

AXES = ("gpu_hours", "flops", "tokens", "hours", "step")
"""Roles that count compute, in the order in which they are tried."""

CLOCKS = ("seconds_per_step", "elapsed")
"""Roles that count time in seconds."""

# Rates from the closest to a pass rate on.
_RATES = (
    r"pass_?rate|solve_?rate|success(?:es)?(?:_?rate)?|win_?rate(?:_percent)?|pass(?:@|_at_|_)?1|correct_?rate"
    r"|(?:win|pass|solve)_(?:pct|percent|percentage)",
    r"acc|accuracy|accuracies|correct|correctness|solved|exact_match|em",
    r"(?:avg|mean)@\d+",
    r"rewards?|rews?|returns?|rets?|fitness",
    r"scores?|performance|elo|pass@\d+|f1|recall|precision|ndcg|mrr|auc|bleu|rouge\w*",
)
_REWARD = 3
"""The place of plain rewards among the rates."""
# Rewards of training, the likeliest first. The last ones are short, as the bar of OpenRLHF and the Monitor of
# Stable-Baselines3 write them.
_TRAINING = (
    "episode_reward",
    "reward_mean",
    "reward",
    "mean_reward",
    "critic_score_mean",
    "critic_rewards_mean",
    "objective_scores",
    "ep_rewmean",
    "eprewmean",
    "value",
    "rm",
    "r_mean",
    "r",
)

# 'Steps (k)' and 'tokens (B)' of spreadsheets; 'runtime (h)' is not the runtime in seconds.
_UNIT = re.compile(r"\s?\(([kKMBT%])\)$|(?<=[hH]ours)\s?\(h(?:ours)?\)$")
# A unit of time in brackets, or as a word; without brackets 'min' is a minimum.
_TIME = re.compile(
    r"[\s_]?[(\[](ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)[)\]]$"
    r"|[\s_](ms|milliseconds?|secs?|seconds?|mins|minutes?|hrs?|hours?|days?)$",
    re.IGNORECASE,
)
_HOURS_OF = {"ms": 1 / 3.6e6, "s": 1 / 3600, "m": 1 / 60, "h": 1.0, "d": 24.0}
_HOURS = re.compile(r"\s?\(h(?:ours)?\)$")
_BRACKETS = re.compile(r"([^()\[\]]*[^()\[\]\s])\s*[(\[]([^()\[\]]+)[)\]]")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_BETWEEN_WORDS = re.compile(r"(?:[^\w@]|_)+")

# val/ has statistics of the value function, too: there only the names of benchmarks tell.
_BARE_EVALUATION = re.compile(r"(?:eval|test|validation)/[^/]+", re.IGNORECASE)
_PLAIN_RATE = re.compile(rf"(?:mean_|avg_)?(?:{'|'.join(_RATES[:3])})(?:_pct|_percent|_percentage)?")
# What it is a rate of stands before it: hard_pass_rate, agent_success_rate.
_RATE_OF = re.compile(r".*_(?:pass|solve|success|win)_?rate")
_BENCHMARK = re.compile(
    r"(?:aime|amc|hmmt|brumo|math_?500|gsm8k|olympiad|minerva|gpqa|mmlu|human_?eval|mbpp|live_?code_?bench|lcb|if_?eval|bbh"
    r"|hellaswag|arc_|swe_?bench|bfcl|tau_?bench|codeforces|hotpot_?qa|trivia_?qa|svamp|asdiv|mawps|aqua|gaokao"
    r"|college_?math|omni_?math|theorem_?qa|science_?qa|boolq|piqa|wino_?grande|truthful_?qa|squad|math(?=_|$))[\w@]*"
)
# Another name is that of a training reward if all of its words say so: rollout/return, mean_ep_reward.
_TRAINING_NAME = re.compile(
    rf"(?:(?:{_RATES[_REWARD]}|means?|avg|average|total|train|training|rollout|ep|episodes?|episodic|env|all|cumulative|raw)(?:_|$))+"
)
_TRAINING_WORD = re.compile(r"(?:train|rollout|collect)\w*", re.IGNORECASE)
_EVALUATION_WORD = re.compile(r"(?:eval|val|valid|test)\w*", re.IGNORECASE)

RewardKind = Literal["evaluation", "rate", "training"]
REWARD_KINDS: tuple[RewardKind, ...] = ("evaluation", "rate", "training")
Rank = tuple[int, int, int]
"""Kind of reward, whether it is a part of one, and distance to a pass rate: the least comes first."""

BARE = (0, 2)
"""The rank of an evaluation without a telling name begins so, as slime's eval/aime: it holds rates, or is no reward."""
RATE_OF = (1, 1, 0)
"""The rank of a rate of something, as tool_success_rate is: beside a training reward, either may be meant."""


class Unit(NamedTuple):
    """The unit in which a log writes an amount: tokens (B) are written in billions."""

    name: str
    """As it is written: k, M, B, T, min, s ..."""
    size: float
    """How many ones it is; of times, how many hours."""
    on_axis: float
    """How much the axis of the curve counts for one of it: as much, or 1 where --x names the column as it is."""


@lru_cache(maxsize=8192)
def plain(column: str) -> str:
    """Return a name as it is compared; a leading underscore stays, since wandb's `_step` is not `step`."""
    bare = _HOURS.sub("_hours", _UNIT.sub("", column.strip()))
    name = _CAMEL.sub("_", bare).lower()
    words = _BETWEEN_WORDS.sub("_", name).strip("_")
    return f"_{words}" if name.startswith("_") else words


def in_ones(column: str) -> tuple[str, float, Unit] | None:
    """Return the name of an amount without its unit, how many ones a unit is, and the unit; None without a unit.

    tokens (B) counts billions. Times are counted in seconds, or in hours where only their name in hours has a role, as
    that of time (min) has. A time whose whole name has a role stays as it is.
    """
    amount, clock = _UNIT.search(column), _TIME.search(column)
    if amount and amount[1] in FACTORS:
        size = FACTORS[amount[1]]
        return _UNIT.sub("", column), size, Unit(amount[1], size, size)
    if clock is None:
        return None
    written = (clock[1] or clock[2]).lower()
    hours = _HOURS_OF["ms" if written.startswith(("ms", "milli")) else written[0]]
    unit = Unit(written, hours, hours)
    name = _TIME.sub("", column)
    if has_role(column, "hours", "gpu_hours", *CLOCKS):
        return column, 1.0, unit
    if has_role(name, *CLOCKS):
        return name, 3600 * hours, unit
    if has_role(f"{name}_hours", "hours", "gpu_hours"):
        return f"{name}_hours", hours, unit
    return column, 1.0, unit


def without_brackets(column: str) -> str:
    """Return a name without the word in brackets behind it, if that may name a run: acc (baseline) is acc.

    A split, a number, a spread and a kind of reward name none.
    """
    match = _BRACKETS.fullmatch(column.strip())
    if match is None:
        return column
    name, word = match.groups()
    is_split = are_splits([word]) or not any(map(str.isalpha, word))
    is_kind = any(is_spread(part) or is_kind_of_reward(part) for part in plain(word).split("_"))
    return column if is_split or is_kind else name


def with_role(columns: Iterable[str], *roles: str) -> list[str]:
    """Return the columns that have one of these roles, in the order of its names; of equal names the first."""
    there = {plain(column): column for column in reversed(list(columns))}
    return [there[name] for role in roles for name in ROLES[role] if name in there]


def has_role(column: str, *roles: str) -> bool:
    return any(plain(column) in ROLES[role] for role in roles)


# What a name tells


def _tells(words: str) -> Callable[[str], bool]:
    """Return whether one of these words stands between the separators of a name."""
    pattern = re.compile(rf"(?:^|_)(?:{words})(?:[_@]|$)")
    return lambda name: pattern.search(plain(name)) is not None


_LOWER = r"errors?|err|wer|cer|regret|perplexity|ppl|nll|mse|mae|rmse|bpb|bpc|penalty|penalties|fail\w*|loss(?:es)?"
_LOWER += r"|toxic\w*|harmful\w*|violations?|hallucinat\w*"
is_lower_better = _tells(_LOWER)
_names_evaluation = _tells(r"evals?|evaluation|val|validation|test|testing|held_?out|dev")
_begins_with_valid = re.compile(r"(?:^|.*/)valid(?:[^A-Za-z].*)?", re.IGNORECASE).fullmatch
is_rate = _tells("|".join((*_RATES[:3], "percent", "pct")))
"""A rate lies in [0, 1] or is per cent; a reward may be any sum."""
names_a_counter = _tells(r"(?:time)?steps?|iters?|iterations?|updates?|frames?|episodes?|epochs?|games?|interactions")
is_score = _tells("scores?")
_is_success = _tells(r"correct|success(?:es)?|solved|wins?|passes|passed")
_is_share = _tells(r"rate|acc|accuracy|frac\w*|fraction|ratio|percent|pct|mean|avg|average|rewards?|scores?|share")
# TRL logs every reward function apart from their sum: the parts come after the whole. So does what only says how well
# the format was kept, and what was chosen from several answers (verl's best@8/mean beside mean@8, SkyRL's pass_at_8).
is_part = _tells(
    r"rewards_(?!reward_mean$)\w+_mean$|(?:format|formatting|penalty|bonus|best|worst|maj|majority|oracle|chosen|rejected"
    r"|(?:pass|acc)(?:@|_at_)(?:[2-9]|\d\d+))(?:@\d+)?"
)
"""A part of a reward, or what was chosen from several answers, as pass@16 is."""
is_spread = _tells(
    r"std|stdev|stderr|sem|sd|se|var|variance|min|max|median|mean|avg|average|ci|lo|hi|low|high|lower|upper|p\d\d"
)
"""How values are spread, or a mean of others: std, max, mean."""
_is_format = _tells("format|formatting")
_is_total = _tells("total|overall|sum")
_is_mean = _tells("avg|average|mean|macro|all|overall")
_is_bound = _tells(r"low|lower|high|upper|ci|lo|hi|value|values|p\d\d|q\d\d?|sd|se")
_is_no_reward = _tells(
    rf"{_LOWER}|"
    r"std|stdev|stderr|sem|var|variance|min|max|median|len|lengths?|time|runtime|seconds?|loss|kl|entropy"
    r"|count|num|zero|tokens?|steps?|epoch|lr|clip\w*|\w*(?<!correct_)frac(?!_correct)|ratio|norm|grad|hash|advantages?|per|truncated"
    r"|fps|sps|learning|weight|scale|coef|threshold|target|iqr|ci|gain|delta|improvement|diff|so_far|peak|attempts?|hops?"
)
# A record so far, as best_reward; best@8 is chosen from several answers.
_is_record = _tells(r"best(?!@|_at_|_of_)|high(?:est)?_scores?|record")
# A mean over the last episodes or steps is behind; the mean of each step comes first.
_is_smoothed = _tells(
    r"last_?\d+|smooth\w*|running|moving|rolling|ema|ewma|ma_?\d+|(?:avg|mean)_?\d{2,}|\d{2,}_?(?:avg|mean)"
)
# exploration_rate and hit_ratio say what is measured, whatever it is.
_is_share_of_something = re.compile(r".*_(?:rate|ratio|frac|fraction|prob|pct|percent|ema|score|loss)").fullmatch
# hits@10 is measured among the best ten.
_is_of_the_best = re.compile(r"[a-z_]+@\d+").fullmatch
_CLOSENESS = tuple(map(_tells, _RATES))
_KINDS_OF_REWARD = (_is_bound, is_part, _is_format, _is_total, _is_mean, _names_evaluation, *_CLOSENESS)


def is_kind_of_reward(word: str) -> bool:
    """Return whether a word says which reward, or which part or mean of it, as total and format do."""
    return any(tells(word) for tells in _KINDS_OF_REWARD)


def is_measured(column: str) -> bool:
    """Return whether a column is named after something that trainers measure; another may be named after a run."""
    is_counted = has_role(column, "gpu_hours", "flops", "tokens", "coarse", "seed")
    is_something = _is_no_reward(column) or _is_share_of_something(plain(column)) or _is_of_the_best(plain(column))
    return is_counted or bool(is_something) or any(_closeness(column))


def is_evaluation(column: str) -> bool:
    """Return whether a name is that of an evaluation; json_valid says what was checked."""
    return _names_evaluation(column) or _begins_with_valid(column.strip()) is not None


def counts_successes(column: str) -> bool:
    """Return whether a column may hold how many were correct, and not which share."""
    return _is_success(column) and not _is_share(column)


def is_statistic(name: str) -> bool:
    """Return whether every word of a name says what is measured, and how, as those of `eval_acc_max` do."""
    tells = (is_training_word, is_benchmark, _is_no_reward, *_KINDS_OF_REWARD, str.isdigit)
    return not name.isdigit() and all(any(each(word) for each in tells) for word in plain(name).split("_"))


def is_training_word(word: str) -> bool:
    return _TRAINING_WORD.fullmatch(word) is not None


def is_benchmark(column: str) -> bool:
    """Return whether a column is named after a public benchmark alone; a run has several of them, not one each."""
    return _BENCHMARK.fullmatch(plain(column)) is not None


def are_splits(words: Iterable[str]) -> bool:
    """Return whether words name training and its evaluations, and not runs."""
    return all(is_training_word(word) or _EVALUATION_WORD.fullmatch(word) for word in words)


def _closeness(name: str) -> list[bool]:
    return [tells(name) for tells in _CLOSENESS]


@lru_cache(maxsize=8192)
def reward_rank(column: str) -> Rank | None:
    """Return how much a column is named like a reward; None where it is not."""
    name = plain(column)
    if _is_no_reward(name) or _is_record(name):
        return None
    if name in _TRAINING:
        return 2, 0, _TRAINING.index(name)
    close = _closeness(name)
    training = None
    if close[_REWARD] and _TRAINING_NAME.fullmatch(name):
        training = (2, 0, len(_TRAINING))
    if not any(close):
        is_bare = _BARE_EVALUATION.fullmatch(column.strip()) or (name[:4] == "val_" and is_benchmark(name[4:]))
        return (*BARE, int(not _is_mean(name))) if is_bare else training
    part = int(is_part(name)) + int(_is_format(name)) + int(_is_smoothed(name))
    if part < 2 and (is_evaluation(name) or (is_benchmark(name) and close.index(True) < len(_RATES) - 2)):
        return 0, part, close.index(True)
    if _PLAIN_RATE.fullmatch(name):
        return 1, 0, 0
    if _RATE_OF.fullmatch(name) and not part:
        return RATE_OF
    return training or (2, 1 + part, int(not _is_total(name)))


def is_whole(name: str) -> bool:
    """Return whether a name has a word for the whole, where that of a part says what it is a part of: eval/all/acc."""
    return _is_mean(name) or _is_total(name)
