"""Python source that hides what only POSIX has from scalerl, to be run in a process of its own before anything else."""

HIDE_POSIX = """
import builtins, os, signal, sys, types

POSIX_MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
POSIX_NAMES = {
    "os": '''fork forkpty getuid geteuid getgid getpgid killpg setsid setpgid sched_getaffinity wait4 waitid WNOHANG
        mkfifo fchmod fchown getloadavg O_CLOEXEC O_NONBLOCK register_at_fork pidfd_open uname'''.split(),
    "signal": '''SIGKILL SIGHUP SIGQUIT SIGSTOP SIGCONT SIGCHLD SIGUSR1 SIGUSR2 SIGALRM SIGXCPU alarm setitimer
        pthread_sigmask sigwait'''.split(),
}

class Restricted(types.ModuleType):
    def __init__(self, real, missing):
        super().__init__(real.__name__)
        self.__dict__.update({name: value for name, value in vars(real).items() if name not in missing})

restricted = {"os": Restricted(os, POSIX_NAMES["os"]), "signal": Restricted(signal, POSIX_NAMES["signal"])}
real_import = builtins.__import__

def guarded(name, globals=None, locals=None, fromlist=(), level=0):
    if str((globals or {}).get("__name__", "")).split(".")[0] == "scalerl":
        if name.split(".")[0] in POSIX_MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in restricted:
            return restricted[name]
    return real_import(name, globals, locals, fromlist, level)

builtins.__import__ = guarded
"""

# Nothing may fork, scalerl or not: processes are started anew.
NO_FORK = """
import multiprocessing

def refuse(*_):
    raise AssertionError("os.fork was called")

os.fork = os.forkpty = refuse
multiprocessing.set_start_method("spawn")
"""
