"""Code outside the package is announced before it is imported, once per run, by the function that imports it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from graded import grade_all
from served_object import Facts

from scalerl.cli.study import TRAIN
from scalerl.errors import ImportPathError
from scalerl.processes import dying_with_parent
from scalerl.recipe.import_path import ANNOUNCED, announce, import_function, path_of
from scalerl.recipe.load import load_recipe
from scalerl.recipe.parts import EnvironmentSettings
from scalerl.recipe.secrets import from_environment
from scalerl.training.environments.build import find
from scalerl.training.graders.pool import GraderPool, GraderSpec
from scalerl.training.remote.child import ChildLink

NOTICE = "this command runs code that settings name: "


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of modules, in a run that has announced nothing."""
    for name in ("ev-il", "evil", "scalerlike"):
        code = f"import sys\nprint('{name} is loaded', file=sys.stderr)\ndef play(problem): ...\n"
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(ANNOUNCED, "")
    return tmp_path


@pytest.mark.parametrize("module", ["evil", "ev-il", "scalerlike"])
def test_notice_comes_before_the_import_and_once(capsys, module):
    for _ in range(2):
        import_function(f"{module}:play")
    assert capsys.readouterr().err.splitlines() == [f"{NOTICE}{module}:play", f"{module} is loaded"]


def test_module_that_is_loaded_already_is_announced(capsys):
    import_function("os:system")
    assert capsys.readouterr().err == f"{NOTICE}os:system\n"


def test_functions_of_this_package_are_announced(capsys):
    """As a grader, the first would import whatever the answers of a data set name, and the second call any server."""
    paths = ("scalerl:import_module", "scalerl.web.client:post")
    for path in paths:
        import_function(path)
    assert capsys.readouterr().err == "".join(f"{NOTICE}{path}\n" for path in paths)


def test_functions_given_in_python_are_not_announced(capsys):
    import_function(path_of(announce, "function"))
    import_function(path_of(lambda: 0, "function"))
    assert capsys.readouterr().err == ""


def test_notice_cannot_be_erased(capsys):
    with pytest.raises(ImportPathError):
        import_function("evil:play\r\x1b[2K\n\u202eharmless")
    first, second = capsys.readouterr().err.splitlines()
    assert (first, second) == (rf"{NOTICE}evil:play\r\x1b[2K\n\u202eharmless", "evil is loaded")


def test_processes_of_a_run_do_not_repeat_it(capsys, folder):
    announce("evil:play")
    program = "from scalerl.recipe.import_path import import_function as find; find('evil:play'); find('ev-il:play')"
    variables = os.environ | {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=variables)
    assert child.stderr.splitlines() == ["evil is loaded", f"{NOTICE}ev-il:play", "ev-il is loaded"]


def test_program_of_a_harness_is_announced(capsys):
    settings = EnvironmentSettings.model_validate({"name": "harness", "program": "evil:play"})
    find(settings)
    assert capsys.readouterr().err.splitlines()[0] == f"{NOTICE}evil:play"


def test_vllm_arguments_that_may_name_code_are_announced(capsys):
    from scalerl.training.rollout.vllm.spec import EngineSpec, engine_arguments

    words = [
        "rollout.engine=vllm",
        'rollout.vllm.engine_args={worker_cls="evil.Worker", block_size=16, compilation_config={backend="evil.fuse"}, '
        'kv_transfer_config={connectors=[{kv_connector_module_path="evil.kv"}]}}',
    ]
    settings = load_recipe("scalerl", words).rollout.vllm
    spec = EngineSpec(config="{}", slots=1, context=8, stop_tokens=(), settings=settings)
    engine_arguments(spec, cache_bytes=None)
    assert capsys.readouterr().err.splitlines() == [
        f'{NOTICE}rollout.vllm.engine_args.worker_cls = "evil.Worker"',
        f'{NOTICE}rollout.vllm.engine_args.compilation_config.backend = "evil.fuse"',
        f'{NOTICE}rollout.vllm.engine_args.kv_transfer_config.connectors = [{{"kv_connector_module_path": "evil.kv"}}]',
    ]


def test_variables_for_a_server_are_announced(capsys, monkeypatch):
    """A stranger's recipe may name any variable, and any server."""
    monkeypatch.setenv("JUDGE_KEY", "abcdefgh12345")
    for _ in range(2):
        settings = from_environment({"api_key": "env:JUDGE_KEY", "url": "http://evil/v1\n"}, "it")
        assert settings["api_key"] == "abcdefgh12345"
    notice = r"this command reads a variable that settings name: JUDGE_KEY for http://evil/v1\n"
    assert capsys.readouterr().err.splitlines() == [notice]


@pytest.fixture
def hostile_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a stranger's folder, with files that have the names of modules."""
    here = tmp_path / "here"
    here.mkdir()
    for name in ("pickle", "typing", "queue", "signal", "torch"):
        (here / f"{name}.py").write_text(f"open({str(here / 'ran')!r}, 'w')")
    monkeypatch.chdir(here)
    return here


def test_files_here_do_not_replace_modules_of_processes(hostile_here: Path):
    with GraderPool(timeout_s=60) as pool:
        assert [graded.value for graded in grade_all(pool, GraderSpec(name="exact"), [("1", "1")])] == [1.0]
    link = ChildLink(Facts)
    try:
        while (message := link.read()[0])[0] == "beat":
            pass
    finally:
        link.kill()
    assert message == ("ready", "here")
    command = [sys.executable, "-c", "print('ran by a study')"]
    assert subprocess.run(dying_with_parent(command), capture_output=True, text=True).stdout == "ran by a study\n"
    train = subprocess.run([*TRAIN, "--help"], capture_output=True, text=True)
    assert (train.returncode, train.stderr) == (0, "")
    assert not (hostile_here / "ran").exists()
