"""Programs in Python that start at once, as forks of a process that has imported what they need.

`wink worker` imports for a second and an MCP server nearly as long, and tests start hundreds of them. What is started
here is a process like any other, with its own folder, environment, streams and signals; it dies with who started it. A
test whose meaning is the start itself starts an interpreter of its own.

`start` and `run` are `subprocess.Popen` and `subprocess.run`; `command` is a command line for code that starts
processes itself. `preload` names modules that the next forks find imported.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from types import TracebackType
from typing import IO, Any

LAUNCHER = Path(__file__).with_name("warm_launcher.py")
PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL
# Longer than any test: a child that has to be waited for so long has hung.
PATIENCE = 600.0


class Process:
    """A program that was started in a fork: what tests use of `subprocess.Popen`, with text in its pipes."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        preload: Sequence[str] = (),
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        terminal: bool = False,
    ) -> None:
        self.args = list(words)
        self.returncode: int | None = None
        ours: list[IO[str] | None] = []
        theirs: list[int] = []
        opened: list[int] = []
        for number, stream in enumerate((stdin, stdout, stderr)):
            pipe: IO[str] | None = None
            if stream == PIPE:
                reader, writer = os.pipe()
                end, stays = (reader, writer) if number == 0 else (writer, reader)
                pipe = open(stays, "w" if number == 0 else "r", encoding="utf-8")  # noqa: SIM115
                theirs.append(end)
                opened.append(end)
            elif stream == DEVNULL:
                theirs.append(os.open(os.devnull, os.O_RDWR))
                opened.append(theirs[-1])
            elif stream == subprocess.STDOUT:
                theirs.append(theirs[1])
            elif stream is None:
                theirs.append(number)
            else:
                theirs.append(stream if isinstance(stream, int) else stream.fileno())
            ours.append(pipe)
        self.stdin, self.stdout, self.stderr = ours
        request = {
            "words": self.args,
            "preload": list(preload),
            "cwd": os.fspath(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
            "terminal": terminal,
        }
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(serve())
        socket.send_fds(self._connection, [json.dumps(request).encode() + b"\n"], theirs)
        for descriptor in opened:
            os.close(descriptor)
        self.pid = int(self._line(None))

    def _line(self, timeout: float | None) -> str:
        """The next line from the server: the process id, then the exit code."""
        self._connection.settimeout(timeout)
        line = b""
        while not line.endswith(b"\n"):
            received = self._connection.recv(1)
            assert received, f"the fork of {self.args} could not be started, or its server has died"
            line += received
        return line.decode()

    def wait(self, timeout: float | None = PATIENCE) -> int:
        if self.returncode is None:
            try:
                self.returncode = int(self._line(timeout))
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self._connection.close()
        return self.returncode

    def communicate(self, timeout: float = PATIENCE) -> tuple[str, str]:
        """All that the program still writes into its pipes; it ends meanwhile."""

        def rest(stream: IO[str] | None) -> str:
            return "" if stream is None else stream.read()

        with ThreadPoolExecutor(2) as pool:
            output, errors = pool.submit(rest, self.stdout), pool.submit(rest, self.stderr)
            try:
                self.wait(timeout)
            finally:
                # Reading ends when the program does.
                self.kill()
        self._close()
        return output.result(), errors.result()

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()
        self.wait()

    def _close(self) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()


def start(*words: str, **options: Any) -> Process:
    """Start `python *words`: a module with `-m`, code with `-c`, or a file."""
    return Process(words, **options)


def run(
    *words: str, input: str = "", check: bool = False, timeout: float = PATIENCE, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run `python *words` to its end."""
    with TemporaryFile("w+") as given, TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        given.write(input)
        given.seek(0)
        process = Process(words, **{"stdin": given, "stdout": output, "stderr": errors} | options)
        try:
            process.wait(timeout)
        finally:
            process.kill()
        for stream in (output, errors):
            stream.seek(0)
        done = subprocess.CompletedProcess(process.args, process.wait(), output.read(), errors.read())
    if check:
        done.check_returncode()
    return done


def command(*words: str, preload: Sequence[str] = ()) -> list[str]:
    """A command line that starts `python *words`, for code that starts processes itself.

    It starts an interpreter as long as no server runs: see the fixture `forks` of tests/conftest.py.
    """
    # -S and -I: the launcher needs nothing but the interpreter, and starts in a few milliseconds.
    return [sys.executable, "-I", "-S", str(LAUNCHER), address(), ",".join(preload), *words]


@cache
def address() -> str:
    """The socket of the server of forks, whether it runs or not."""
    folder, owner = TemporaryDirectory(prefix="wink-warm-", ignore_cleanup_errors=True), os.getpid()

    def clean_up() -> None:
        # Not in a fork of this process.
        if os.getpid() == owner:
            if _server is not None and _server.stdin is not None:
                _server.stdin.close()
                _server.wait()
            folder.cleanup()

    atexit.register(clean_up)
    return str(Path(folder.name) / "socket")


_server: subprocess.Popen[bytes] | None = None


def serve() -> str:
    """Start the server of forks if it does not run; returns its socket."""
    global _server
    if _server is None or _server.poll() is not None:
        with suppress(FileNotFoundError):
            os.unlink(address())
        # The server ends when its standard input does, which is when this process ends, however it does.
        words = [sys.executable, "-m", "tests.warm", address()]
        _server = subprocess.Popen(
            words, cwd=Path(__file__).parents[1], stdin=PIPE, stdout=PIPE, start_new_session=True, bufsize=0
        )
        assert _server.stdout is not None
        assert _server.stdout.read(1), "the server of forks could not be started"
        _server.stdout.close()
    return address()


class Server:
    """Forks a process for each request, tells its exit code, and kills it when who asked for it is gone."""

    def __init__(self, address: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(64)
        self._woken, waker = socket.socketpair()
        self._woken.setblocking(False)
        waker.setblocking(False)
        self._waker = waker
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, socket.socket] = {}
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        for source in (self._listener, self._woken, sys.stdin):
            self._selector.register(source, selectors.EVENT_READ)

    def next_child(self) -> dict[str, Any] | None:
        """Serve until a fork returns its request, or, in the server itself, until there is nobody to serve."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    self._kill(self._connections)
                    return None
                if key.fileobj is self._woken:
                    with suppress(BlockingIOError):
                        self._woken.recv(4096)
                    self._reap()
                elif key.fileobj is self._listener:
                    request = self._fork(self._listener.accept()[0])
                    if request is not None:
                        return request
                else:
                    # Nothing is sent after a request: who asked is gone.
                    self._selector.unregister(key.fileobj)
                    self._kill([key.data])

    def _fork(self, connection: socket.socket) -> dict[str, Any] | None:
        content, descriptors, _, _ = socket.recv_fds(connection, 65536, 3)
        while not content.endswith(b"\n"):
            content += connection.recv(65536)
        request: dict[str, Any] = json.loads(content)
        for module in request["preload"]:
            # The program says what it needs and is not installed.
            with suppress(ImportError):
                importlib.import_module(module)
        assert threading.active_count() == 1, "a module that is imported before the fork has started a thread"
        gc.freeze()
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            self._selector.close()
            for source in (connection, self._listener, self._woken, self._waker, *self._connections.values()):
                source.close()
            return request | {"streams": list(descriptors)}
        for descriptor in descriptors:
            os.close(descriptor)
        self._connections[child] = connection
        self._selector.register(connection, selectors.EVENT_READ, child)
        connection.sendall(f"{child}\n".encode())
        return None

    def _reap(self) -> None:
        for child, connection in [*self._connections.items()]:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                del self._connections[child]
                with suppress(KeyError):
                    self._selector.unregister(connection)
                with suppress(OSError):
                    connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
                connection.close()

    def _kill(self, children: Any) -> None:
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def become(request: dict[str, Any]) -> None:
    """Make this process look as if an interpreter had been started, and run what it was started for."""
    for number, descriptor in enumerate(request["streams"]):
        os.dup2(descriptor, number)
    for descriptor in request["streams"]:
        if descriptor > 2:
            os.close(descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["terminal"]:
        import fcntl
        import termios

        os.setsid()
        # The program becomes the foreground process of the terminal, so that Ctrl-C reaches it.
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    buffering = 1 if os.isatty(1) or os.environ.get("PYTHONUNBUFFERED") else -1
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", buffering, "utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
    kind, *rest = request["words"]
    path = request["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [request["cwd"], *filter(None, path), *sys.path[1:]]
    if kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    else:
        sys.argv = [kind, *rest]
        sys.path[0] = str(Path(kind).parent)
        runpy.run_path(kind, run_name="__main__")


def main() -> None:
    server = Server(sys.argv[1])
    os.write(1, b"\n")
    request = server.next_child()
    if request is not None:
        del server
        become(request)


if __name__ == "__main__":
    main()
