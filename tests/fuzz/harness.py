"""Runs a target on an input and says what the library must not do.

The rule, once for all targets. On any input a target either returns a result in its stated ranges, or raises
1. an error of the library's family (`qgcam_lib.errors.QgcamError`), or
2. an error that the target's row names (`errors`), since the docstring of what is called names it, and that the
   library itself raised (the deepest frame stands on a `raise` of qgcam_lib): a ValueError of NumPy that slips
   through is none.
Never anything else; no message above 2,000 characters or with a traceback in it; no warning but a UserWarning of the
library; no file opened for writing, made or removed outside the folder, and nothing read from beside it; no process,
no connection; no more than 10 seconds and 2 GiB above what the process has (limits of work, wide enough for a slow
machine).
"""

import contextlib
import dis
import io
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
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
    inputs near the valid one; errors: documented ones beside the library's family; check: raises
    AssertionError for a result outside its ranges; beside: the input names files itself, as a command line
    does, so reading beside the folder is no fault."""

    name: str
    valid: Files
    call: Callable[[Path], Any]
    make: SearchStrategy
    errors: tuple[type[Exception], ...] = (ValueError,)
    check: Callable[[Any], None] | None = None
    beside: bool = False


@dataclass(frozen=True)
class Fault:
    """What a target did that it must not. what: kind and exception; where: the deepest line of the library."""

    what: str
    where: str
    text: str = field(compare=False)


class _TooLong(BaseException):
    pass


class _Watch:
    """The audit hook: what happens outside the folder while a target runs."""

    def __init__(self):
        self.inside, self.around, self.seen = "", "", []
        sys.addaudithook(self._hook)

    def _free(self, path: Any) -> bool:
        path = os.path.abspath(os.fsdecode(path)) if isinstance(path, str | bytes | os.PathLike) else ""
        return (
            not path
            or path == self.inside
            or path.startswith(self.inside + os.sep)
            or "__pycache__" in path
            or path.startswith("/dev/") and not path.startswith("/dev/shm/")
        )

    def _hook(self, event: str, args: tuple) -> None:
        if not self.inside:
            return
        try:
            if event == "open" and not self._free(args[0]):
                writes = (args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
                path = os.path.abspath(os.fsdecode(args[0]))
                if writes or self.around and path.startswith(self.around + os.sep):
                    self.seen.append(f"{'writes' if writes else 'reads'} {path}")
            elif event in (
                "os.remove",
                "os.mkdir",
                "os.rmdir",
                "os.rename",
                "os.link",
                "os.symlink",
                "os.chmod",
                "shutil.rmtree",
            ):
                self.seen += [
                    f"{event} {one}" for one in args[:2] if isinstance(one, str | os.PathLike) and not self._free(one)
                ]
            elif (
                event
                in (
                    "subprocess.Popen",
                    "os.system",
                    "os.exec",
                    "os.posix_spawn",
                    "os.fork",
                    "socket.connect",
                    "socket.getaddrinfo",
                    "pickle.find_class",
                )
                and args[:2] != ("builtins", "object")
                and str(args[0]).split(".")[0] not in ("numba", "numpy", "copyreg")
            ):  # numba reads its cache
                self.seen.append(f"{event} {args!r:.200}")
        except (TypeError, ValueError):  # a path that is none, such as one with NUL
            pass


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


def _frames(error: BaseException) -> list:
    frames, step = [], error.__traceback__
    while step:
        frames.append(step)
        step = step.tb_next
    return frames


def _said_by_us(error: BaseException) -> bool:
    """Did the library itself raise it? The deepest frame is one of the library and stands on a `raise`."""
    last = _frames(error)[-1]
    code = last.tb_frame.f_code
    return code.co_filename.startswith(PACKAGE) and dis.opname[code.co_code[last.tb_lasti]] in (
        "RAISE_VARARGS",
        "RERAISE",
    )


def _where(error: BaseException) -> str:
    ours = [one for one in _frames(error) if one.tb_frame.f_code.co_filename.startswith(PACKAGE)]
    code = ours[-1].tb_frame.f_code if ours else None
    return f"{code.co_filename.removeprefix(PACKAGE)}:{code.co_name}" if code else "outside the library"


def _of_error(error: Exception, target: Target) -> list[Fault]:
    if not isinstance(error, QgcamError) and not (isinstance(error, target.errors) and _said_by_us(error)):
        text = "".join(traceback.format_exception(error))[-1500:]
        return [Fault(f"undocumented {type(error).__name__}", _where(error), text)]
    said = str(error)
    if len(said) > LETTERS or "Traceback (most recent" in said:
        return [Fault("long message" if len(said) > LETTERS else "traceback in a message", _where(error), said[:300])]
    return []


def _of_warnings(caught: list) -> list[Fault]:
    hidden = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)  # as Python hides them
    caught = [one for one in caught if not issubclass(one.category, hidden)]
    good = [one for one in caught if one.category is UserWarning or one.category.__module__.startswith("qgcam_lib")]
    return [
        Fault(
            f"warning {one.category.__name__}",
            f"{one.filename.removeprefix(PACKAGE).split('site-packages/')[-1]}:{one.lineno}",
            str(one.message)[:300],
        )
        for one in caught
        if one not in good
    ] + [Fault("long warning", one.filename, str(one.message)[:300]) for one in good if len(str(one.message)) > LETTERS]


def write_files(files: Files, folder: Path) -> None:
    for name, data in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)


class Box:
    """A folder for inputs, emptied for each, with a file beside it that no input may reach."""

    def __enter__(self):
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a disk makes this three times as slow
        self.around = Path(tempfile.mkdtemp(prefix="fuzz-", dir=memory))
        (self.around / "outside.txt").write_text("kept")
        self.folder, self.runs = self.around / "0", 0
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.around, ignore_errors=True)

    def warm(self, target: Target) -> None:
        """The valid input, outside the limits: what is compiled and imported once. It must work."""
        self.folder = self.around / "warm"
        shutil.rmtree(self.folder, ignore_errors=True)
        write_files(target.valid, self.folder)
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            result = target.call(self.folder)
        if target.check:
            target.check(result)

    def run(self, target: Target, files: Files) -> list[Fault]:
        """What the target did on this input that it must not."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.runs += 1  # a new place each time: loaders remember what a path held
        self.folder = self.around / str(self.runs)
        self.folder.mkdir()
        write_files(files, self.folder)
        faults, sys.dont_write_bytecode = [], True
        _watch.around, _watch.seen = "" if target.beside else str(self.around), []
        with (
            warnings.catch_warnings(record=True) as caught,
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("always")
            try:
                with _limits():
                    _watch.inside = str(self.folder)
                    try:
                        result = target.call(self.folder)
                    finally:
                        _watch.inside = ""
                if target.check:
                    target.check(result)
            except _TooLong as late:
                faults.append(
                    Fault(f"more than {SECONDS} s", _where(late), "".join(traceback.format_exception(late))[-1500:])
                )
            except AssertionError as wrong:
                ours = _where(wrong) != "outside the library"
                faults += (
                    _of_error(wrong, target) if ours else [Fault("result out of range", target.name, str(wrong)[:500])]
                )
            except Exception as error:
                faults += _of_error(error, target)
        faults += _of_warnings(caught)
        return faults + [Fault("leaves its folder", one, one) for one in dict.fromkeys(_watch.seen)]


@dataclass
class Report:
    """What came of many inputs. worst: Fault -> the smallest input that showed it; counts: Fault -> inputs."""

    target: str
    inputs: int = 0
    seconds: float = 0.0
    failed: int = 0
    worst: dict[Fault, Files] = field(default_factory=dict)
    counts: dict[Fault, int] = field(default_factory=dict)


def size_of(files: Files) -> int:
    return sum(map(len, files.values()))


def fuzz(target: Target, n: int, start: int = 0, tell: Callable[[Report], None] | None = None) -> Report:
    """Run `n` inputs of a target; the same `start` gives the same inputs."""
    report = Report(target.name)
    with Box() as box:
        box.warm(target)
        began = time.perf_counter()

        @seed(zlib.crc32(target.name.encode()) + start)
        @settings(
            max_examples=n,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(target.make)
        def one(files):
            faults = box.run(target, files)
            report.inputs += 1
            report.failed += bool(faults)
            for fault in faults:
                report.counts[fault] = report.counts.get(fault, 0) + 1
                if fault not in report.worst or size_of(files) < size_of(report.worst[fault]):
                    report.worst[fault] = files
            if tell:
                tell(report)

        one()
    report.seconds = time.perf_counter() - began
    return report


def as_test(target: Target, files: Files) -> str:
    """A row to paste into found.py: the files that differ from the valid input, long runs written as products."""
    changed = {name: data for name, data in files.items() if data != target.valid.get(name)}
    return f"({target.name!r}, {{{', '.join(f'{name!r}: {_short(data)}' for name, data in changed.items())}}}),"


def _short(data: bytes) -> str:
    parts = re.split(rb"((.{1,5}?)\2{40,})", data, flags=re.DOTALL)
    out = [repr(parts[0])] * bool(parts[0])
    for run, unit, rest in zip(parts[1::3], parts[2::3], parts[3::3]):
        out += [f"{unit!r} * {len(run) // len(unit)}", *([repr(rest)] if rest else [])]
    return " + ".join(out) or "b''"


def all_targets() -> dict[str, Target]:
    """Every target by name, from the modules beside this one."""
    import importlib

    found = [
        one
        for path in sorted(Path(__file__).parent.glob("targets_*.py"))
        for one in importlib.import_module(path.stem).TARGETS
    ]
    assert len({one.name for one in found}) == len(found)
    return {one.name: one for one in found}


PER_TARGET = 60  # inputs in CI


def run_some(target: Target) -> None:
    """What CI asks of a target: the valid input works, and none of `PER_TARGET` inputs near it shows a fault."""
    with Box() as box:
        box.warm(target)
        assert not box.run(target, target.valid)
    report = fuzz(target, PER_TARGET)
    assert not report.worst, "\n".join(
        f"{fault.what} at {fault.where}\n{fault.text}\n{as_test(target, files)[:3000]}"
        for fault, files in report.worst.items()
    )
