"""Runs a target on an input and says what the library must not do.

The rule, once for all targets. On any input a target either returns a result in its stated ranges, or raises
1. an error of the library's family (`qgcam_lib.errors.QgcamError`), or
2. an error that the target names (`errors`), since the docstring of what is called names it, and that the library
   itself raised (the deepest frame is the library's and is on a `raise`): a ValueError of NumPy that slips through is
   none.
Never anything else; no message above 2,000 characters or with a traceback in it; no warning but a UserWarning of the
library; no file opened for writing, made or removed outside the folder, and nothing read from beside it; no process,
no connection; no more than 10 seconds and 2 GiB above what the process has (limits of work, wide enough for a slow
machine).
"""

import contextlib
import dis
import io
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

import qgcam_lib
from qgcam_lib.errors import QgcamError

PACKAGE = os.path.dirname(qgcam_lib.__file__) + os.sep
SECONDS, BYTES, LETTERS = 10, 2 * 2**30, 2000
Files = dict[str, bytes]


@dataclass(frozen=True)
class Target:
    """name; valid: an input that works, file name -> bytes; call: what is done with the folder of an input; make:
    inputs near the valid one; errors: documented ones beside the library's family; check: raises AssertionError for a
    result outside its ranges; beside: the input names files itself, as a command line does, so reading beside the
    folder is no fault."""

    name: str
    valid: Files
    call: Callable[[Path], Any]
    make: SearchStrategy
    errors: tuple[type[Exception], ...] = (ValueError,)
    check: Callable[[Any], None] | None = None
    beside: bool = False


class _TooLong(BaseException):
    pass


_CHANGES = ("os.remove", "os.mkdir", "os.rmdir", "os.rename", "os.link", "os.symlink", "os.chmod", "shutil.rmtree")
_LEAVES = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect",
           "socket.getaddrinfo", "pickle.find_class")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class _Watch:
    """The audit hook: what happens outside the folder while a target runs."""

    def __init__(self):
        self.inside, self.around, self.seen = "", "", []
        sys.addaudithook(self._hook)

    def _outside(self, path: Any) -> str:
        """The path, where it is outside the folder and no cache of Python; else ""."""
        path = os.path.abspath(os.fsdecode(path)) if isinstance(path, str | bytes | os.PathLike) else ""
        device = path.startswith("/dev/") and not path.startswith("/dev/shm/")
        inside = path == self.inside or path.startswith(self.inside + os.sep)
        return "" if inside or device or "__pycache__" in path else path

    def _hook(self, event: str, args: tuple) -> None:
        if not self.inside:
            return
        with contextlib.suppress(TypeError, ValueError):  # a path that is none, such as one with NUL
            if event == "open" and (path := self._outside(args[0])):
                if (args[2] or 0) & _WRITES:
                    self.seen.append(f"writes {path}")
                elif self.around and path.startswith(self.around + os.sep):
                    self.seen.append(f"reads {path}")
            elif event in _CHANGES:
                self.seen += [f"{event} {one}" for one in args[:2] if isinstance(one, str | os.PathLike)
                              and self._outside(one)]
            elif event in _LEAVES and args[:2] != ("builtins", "object"):
                if str(args[0]).split(".")[0] not in ("numba", "numpy", "copyreg"):  # numba reads its cache
                    self.seen.append(f"{event} {args!r:.200}")


_watch = _Watch()


@contextlib.contextmanager
def _limits():
    """At most SECONDS and BYTES more for the block."""

    def late(*_):
        raise _TooLong

    before = signal.signal(signal.SIGALRM, late)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + BYTES, hard))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)


def _said_by_us(error: BaseException) -> bool:
    """Did the library itself raise it? The deepest frame is one of the library and is on a `raise`."""
    last = error.__traceback__
    while last.tb_next:
        last = last.tb_next
    code = last.tb_frame.f_code
    raises = dis.opname[code.co_code[last.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")
    return raises and code.co_filename.startswith(PACKAGE)


def _of_error(error: BaseException, target: Target) -> list[str]:
    where = "".join(traceback.format_exception(error))[-1500:]
    if isinstance(error, _TooLong):
        return [f"more than {SECONDS} s\n{where}"]
    if not isinstance(error, QgcamError) and not (isinstance(error, target.errors) and _said_by_us(error)):
        return [f"undocumented {type(error).__name__}\n{where}"]
    said = str(error)
    long = len(said) > LETTERS or "Traceback (most recent" in said
    return [f"a message of {len(said)} characters: {said[:300]}"] if long else []


def _of_warnings(caught: list) -> list[str]:
    hidden = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)  # as Python hides them
    found = []
    for one in caught:
        ours = one.category is UserWarning or one.category.__module__.startswith("qgcam_lib")
        if not issubclass(one.category, hidden) and (not ours or len(str(one.message)) > LETTERS):
            found.append(f"warning {one.category.__name__} at {one.filename}:{one.lineno}: {str(one.message)[:300]}")
    return found


class Box:
    """A folder for the inputs of a target, a new one for each, with a file beside it that no input may reach."""

    def __init__(self, target: Target):
        self.target, self.runs = target, 0

    def __enter__(self):
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a disk makes this three times as slow
        self.around = Path(tempfile.mkdtemp(prefix="fuzz-", dir=memory))
        (self.around / "outside.txt").write_text("kept")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            with warnings.catch_warnings():  # the valid input, without limits: what is compiled and imported once
                warnings.simplefilter("ignore")
                result = self.target.call(self._write(self.target.valid))
        if self.target.check:
            self.target.check(result)
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.around, ignore_errors=True)

    def _write(self, files: Files) -> Path:
        shutil.rmtree(self.around / str(self.runs), ignore_errors=True)
        self.runs += 1  # a new place each time: loaders remember what a path held
        folder = self.around / str(self.runs)
        folder.mkdir()
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        return folder

    def faults(self, files: Files) -> list[str]:
        """What the target does on this input that it must not."""
        folder, found, sys.dont_write_bytecode = self._write(files), [], True
        _watch.around, _watch.seen = "" if self.target.beside else str(self.around), []
        with (warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()),
              contextlib.redirect_stderr(io.StringIO())):
            warnings.simplefilter("always")
            try:
                with _limits():
                    _watch.inside = str(folder)
                    try:
                        result = self.target.call(folder)
                    finally:
                        _watch.inside = ""
                if self.target.check:
                    self.target.check(result)
            except (Exception, _TooLong) as error:
                found += _of_error(error, self.target)
        return found + _of_warnings(caught) + [f"leaves its folder: {one}" for one in dict.fromkeys(_watch.seen)]


def fuzz(target: Target, n: int, start: int = 0) -> None:
    """Run `n` inputs of a target, and fail with the smallest one that shows a fault; the same `start` gives the same
    inputs."""
    with Box(target) as box:
        assert not box.faults(target.valid)

        @seed(zlib.crc32(target.name.encode()) + start)
        @settings(max_examples=n, database=None, deadline=None, phases=[Phase.generate, Phase.shrink],
                  suppress_health_check=list(HealthCheck))
        @given(target.make)
        def runs_as_documented(files):
            faults = box.faults(files)
            changed = {name: data for name, data in files.items() if data != target.valid.get(name)}
            assert not faults, f"{faults[0]}\n{target.name!r}, {changed!r:.3000}"

        runs_as_documented()
