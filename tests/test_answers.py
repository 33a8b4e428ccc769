"""What a model wrote at its evaluations, kept and counted (benchmarks/answers.py)."""

import importlib

answers = importlib.import_module("answers")

TAGS = {"thinking_start": "<think>", "thinking_end": "</think>"}
GIVEN = [
    ("He has 3 + 4 = 7 coins.", "7"),
    ("That is 7. In all 3 + 5 = 8.", "7"),
    ("3 * 4 = 13, so 13", "12"),
    ("Nobody knows.", "30"),
]


def test_answers_of_an_evaluation_are_kept_and_counted(tmp_path, capsys):
    folder = tmp_path / "scalerl-seed0"
    folder.mkdir()
    keeper = answers.Keeper(folder)
    keeper.grade("of training: 5", "5", **TAGS)
    verdicts = [keeper.grade(text, answer, **TAGS) for text, answer in GIVEN]
    assert verdicts == [True, False, False, False]
    keeper.evaluated([{"step": 0, "num_samples": len(GIVEN), "reward": 0.25, "gpu_hours": 0.0}])
    answers.kept(str(tmp_path / "kept.gz"), "0,end", str(folder))
    capsys.readouterr()
    answers.kinds(str(tmp_path / "kept.gz"))
    *_, row = capsys.readouterr().out.splitlines()
    arm, step, _, *shares = (cell.strip() for cell in row.strip("|").split("|"))
    assert (arm, step) == ("scalerl", "end")
    # The last number right, and any; another problem's number, which is none here; of three equations two are true; two
    # of four answers have true ones alone, one of these is right, and none of the others.
    assert shares == ["0.250", "0.500", "0.000", "0.667", "0.500", "0.500", "0.000"]
