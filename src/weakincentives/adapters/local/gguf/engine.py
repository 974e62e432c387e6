"""One loaded GGUF file: llama.cpp in this process, shared by everything that uses the same file.

The runtime also starts a local HTTP listener; only its tokenizer is used, with a key known only to this process.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import http.client
import json
import os
import secrets
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weakincentives._base.imports import import_extra
from weakincentives.adapters.local.cache import cache_folder
from weakincentives.adapters.local.embedding import Embedder, Encoded, usable_cores
from weakincentives.errors import WinkError

# How many conversation prefixes are kept on disk, a few megabytes each.
MAX_STATES = 8
# The longest text that is embedded, in tokens.
EMBEDDED_TOKENS = 512
# Increment when `Engine.embed` computes vectors differently, so that stored ones are computed again.
EMBEDDING = 2
Listener = Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True, slots=True)
class Settings:
    """The identity of a loaded model; equal settings share one engine."""

    path: Path
    context: int
    threads: int
    embedding: bool = False


class EngineError(WinkError):
    """The runtime rejected a request; `kind` is its error type."""

    def __init__(self, message: str, kind: str = "", facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.facts = facts or {}


class Engine:
    """A model that is ready to answer; calls from several threads queue up."""

    def __init__(self, settings: Settings) -> None:
        runtime = load_runtime()
        self.settings = settings
        self._key = secrets.token_hex(16)
        params = runtime.CommonParams()
        params.model.path = str(settings.path)
        params.n_ctx = settings.context
        params.n_parallel = 1
        # Small batches, so that a deadline can interrupt the reading of a long prompt.
        params.n_batch = params.n_ubatch = settings.context if settings.embedding else 256
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings.threads
        params.embedding = settings.embedding
        params.warmup = False
        params.use_jinja = True
        params.verbosity = -1
        # Memory for conversations evicted from the model; the default is 8 GB.
        params.cache_ram_mib = 256
        params.slot_save_path = f"{_state_folder()}{os.sep}"
        params.ui = False
        params.n_threads_http = 1
        params.api_keys = [self._key]
        try:
            with _uninterrupted():
                self._server = runtime.Server(params)
        except RuntimeError as error:
            raise EngineError(f"llama.cpp cannot load '{settings.path}': is it a GGUF model file? ({error})") from error
        self._http: http.client.HTTPConnection | None = None
        self._lock = threading.Lock()
        self._recalled: set[str] = set()
        self.facts: Mapping[str, Any] = self._ask("GET", "/v1/models")["data"][0]["meta"]

    @property
    def parameters(self) -> int:
        """How many weights the model has."""
        return int(self.facts.get("n_params", 0))

    def chat(self, request: Mapping[str, Any], heard: Listener) -> None:
        """Decode; `heard` is called with every chunk, including prompt progress, and returns True to stop."""
        raised: list[BaseException] = []

        def hear(chunk: Mapping[str, Any]) -> bool:
            try:
                _check(chunk)
                return heard(chunk)
            except BaseException as error:
                raised.append(error)
                return True

        self._server.handle_chat_completions({**request, "stream": True, "return_progress": True}, hear)
        if raised:
            raise raised[0]

    def recall(self, messages: Sequence[Mapping[str, str]], read: Callable[[], object]) -> None:
        """Load a conversation prefix into the model: from the file an earlier process saved, else by calling `read`.

        Loading the file takes milliseconds; reading takes seconds.
        """
        file = _state_folder() / f"{self._state_name(messages)}.state"
        if file.name in self._recalled:
            return
        self._recalled.add(file.name)
        try:
            if file.is_file():
                self._ask("POST", "/slots/0?action=restore", {"filename": file.name})
                return
        except EngineError:
            file.unlink(missing_ok=True)
        read()
        new = file.with_suffix(f".{os.getpid()}")
        # If the file cannot be written, the prefix is read again next time.
        with contextlib.suppress(OSError, EngineError):
            file.parent.mkdir(parents=True, exist_ok=True)
            self._ask("POST", "/slots/0?action=save", {"filename": new.name})
            new.replace(file)
            for old in sorted(file.parent.glob("*.state"), key=lambda each: -each.stat().st_mtime)[MAX_STATES:]:
                old.unlink()

    def _state_name(self, messages: Sequence[Mapping[str, str]]) -> str:
        file = self.settings.path.stat()
        key = (load_runtime().__version__, self.settings.context, file.st_size, file.st_mtime_ns, list(messages))
        return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """A unit vector for each text; a text longer than the context is truncated."""
        answer = self._server.handle_embeddings({"input": [self._fitting(text) for text in texts]})
        _check(answer)
        return [item["embedding"] for item in answer["data"]]

    def _fitting(self, text: str) -> str:
        """The longest beginning of a text that fits the context, leaving room for the start and end tokens."""
        room = self.settings.context - 2
        # A token is at least one character, and rarely more than a few.
        text = text[: 16 * room]
        while len(text) > room and (tokens := self.count(text)) > room:
            text = text[: len(text) * room // tokens]
        return text

    def count(self, text: str) -> int:
        """The exact number of tokens the model reads for this text."""
        return len(self._ask("POST", "/tokenize", {"content": text})["tokens"])

    def count_chat(self, messages: Sequence[Mapping[str, str]]) -> int:
        """The exact number of tokens the model reads for this conversation, including its template."""
        return int(self._ask("POST", "/v1/chat/completions/input_tokens", {"messages": list(messages)})["input_tokens"])

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        with self._lock:
            for attempt in (1, 2):
                if self._http is None:
                    self._http = http.client.HTTPConnection(self._server.listening_address.partition("//")[2])
                try:
                    self._http.request(method, path, None if body is None else json.dumps(body), headers)
                    response = self._http.getresponse()
                    answer = json.loads(response.read())
                    break
                except (http.client.HTTPException, ConnectionError):
                    self._http.close()
                    self._http = None
                    if attempt == 2:
                        raise
        if response.status != 200:
            raise EngineError(str(answer))
        return answer

    def close(self) -> None:
        """Free the model; waits for a running call to end."""
        with self._lock:
            if self._http is not None:
                self._http.close()
                self._http = None
            self._server = None


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold back Ctrl-C until the model is loaded: llama.cpp hangs if it is interrupted while loading."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Shelf:
    """Every engine of this process, with the number of its users."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines: dict[tuple[int, Settings], tuple[Engine, int]] = {}

    def take(self, settings: Settings) -> Engine:
        key = (os.getpid(), settings)
        with self._lock:
            engine, users = self._engines.get(key) or (Engine(settings), 0)
            self._engines[key] = (engine, users + 1)
        return engine

    def give_back(self, settings: Settings) -> None:
        key = (os.getpid(), settings)
        with self._lock:
            if key not in self._engines:
                return
            engine, users = self._engines.pop(key)
            if users > 1:
                self._engines[key] = (engine, users - 1)
                return
        engine.close()

    def clear(self) -> None:
        with self._lock:
            engines = [engine for (pid, _), (engine, _) in self._engines.items() if pid == os.getpid()]
            self._engines.clear()
        for engine in engines:
            engine.close()


SHELF = _Shelf()
atexit.register(SHELF.clear)


def embedding_settings(file: Path, threads: int | None) -> Settings:
    """The settings of a model that embeds texts."""
    return Settings(file, EMBEDDED_TOKENS, threads or usable_threads(), embedding=True)


def gguf_embedder(engine: Engine) -> Embedder:
    """An embedding model in a GGUF file; its kept vectors are known by the size and date of the file."""
    file = engine.settings.path
    status = file.stat()

    def encode(texts: Sequence[str]) -> Generator[Encoded, None, None]:
        if texts:
            yield Encoded(range(len(texts)), engine.embed(texts), 1, 1)

    return Embedder(file.stem, f"{status.st_size:x}-{status.st_mtime_ns:x}-{EMBEDDING}", encode)


def usable_threads() -> int:
    """One less than the cores: llama.cpp's threads wait for each other by spinning, so a shared core slows them all."""
    return max(1, usable_cores() - 1)


def _check(answer: Mapping[str, Any]) -> None:
    if "error" in answer:
        error = answer["error"]
        raise EngineError(str(error.get("message", error)), str(error.get("type", "")), error)


def _state_folder() -> Path:
    return cache_folder() / "states"


def load_runtime() -> Any:
    """llama.cpp, or an error that says what to install."""
    return import_extra("xllamacpp", "gguf", "A GGUF model")
