# Sourced by the other scripts: makes and keeps the project's virtual environment, $root/.venv.
#
# The caller sets $root, the checkout's directory, then calls `ensure_environment runtime` or `ensure_environment dev`.
# The first call creates the environment and installs the packages of uv.lock; later ones compare one stamp and return.
# STAGEDB_PYTHON chooses its interpreter.

note() {
    printf '%s\n' "$*" >&2
}

# The first interpreter that is new enough. It is run and not only looked up, because a shim on PATH may lead to nothing.
find_python() {
    for candidate in ${STAGEDB_PYTHON:+"$STAGEDB_PYTHON"} \
        python3 python python3.14 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    note "stagedb needs Python 3.11 or newer, and none was found on PATH."
    note "Install one (Debian, Ubuntu: apt-get install python3 python3-venv), or name it: STAGEDB_PYTHON=/path/to/python3"
    return 1
}

# The stamp of a current environment. It has the path, because an environment does not work after it is moved.
wanted_stamp() {
    printf '%s\n' "$root"
    cat "$root/uv.lock" "$root/pyproject.toml" | cksum
}

is_current() {
    [ -x "$root/.venv/bin/python" ] && [ -f "$root/.venv/.stagedb-$1" ] &&
        [ "$(cat "$root/.venv/.stagedb-$1")" = "$stamp" ]
}

ensure_environment() {
    stamp=$(wanted_stamp)
    # The development environment holds everything that the runtime one does.
    if is_current dev || is_current "$1"; then
        return 0
    fi
    lock_environment || return 1
    trap 'unlock_environment; exit 130' INT
    trap 'unlock_environment; exit 143' TERM HUP
    trap unlock_environment EXIT
    status=0
    # Another process may have done it while this one waited.
    if ! is_current dev && ! is_current "$1"; then
        install_environment "$1" || status=1
    fi
    trap - INT TERM HUP EXIT
    unlock_environment
    return "$status"
}

# A directory is the lock, because mkdir is atomic everywhere. A lock whose owner is gone is taken over.
lock_environment() {
    lock="$root/.cache/environment.lock"
    mkdir -p "$root/.cache" || return 1
    announced=
    while ! mkdir "$lock" 2>/dev/null; do
        owner=$(cat "$lock/pid" 2>/dev/null)
        # No pid yet: its owner is between two lines, unless it stays so.
        [ -n "$owner" ] || { sleep 1; owner=$(cat "$lock/pid" 2>/dev/null); }
        if [ -d "$lock" ] && { [ -z "$owner" ] || ! kill -0 "$owner" 2>/dev/null; }; then
            # Renamed before it is removed, so that only one of several waiting processes clears it.
            mv "$lock" "$lock.$$" 2>/dev/null && rm -rf "$lock.$$"
            continue
        fi
        [ -n "$announced" ] || note "stagedb: waiting for another process (pid $owner) to finish the set-up ..."
        announced=yes
        sleep 1
    done
    printf '%s\n' "$$" >"$lock/pid"
}

unlock_environment() {
    rm -rf "$lock"
}

sync_environment() (
    unset VIRTUAL_ENV
    cd "$root" && UV_PROJECT_ENVIRONMENT="$venv" UV_PYTHON_DOWNLOADS=never "$venv/bin/uv" sync \
        --frozen --inexact --compile-bytecode --python "$venv/bin/python" "$1"
)

install_environment() {
    venv="$root/.venv"
    # An old stamp is no longer valid from here on. Without a stamp, an interrupted set-up is done again.
    moved=
    for old in "$venv/.stagedb-runtime" "$venv/.stagedb-dev"; do
        if [ -f "$old" ]; then
            [ "$(sed 1q "$old")" = "$root" ] || moved=yes
            case $old in *-dev) set -- dev ;; esac
            rm -f "$old"
        fi
    done
    if [ -n "$moved" ] || ! "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$(find_python) || return 1
        if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
            note "stagedb: $python cannot make virtual environments: its venv or ensurepip module is not installed."
            note "Install it (Debian, Ubuntu: apt-get install python3-venv; Fedora: dnf install python3-pip), or name"
            note "another interpreter with STAGEDB_PYTHON=/path/to/python3."
            return 1
        fi
        note "stagedb: first use: making a virtual environment in .venv with $("$python" --version) ..."
        "$python" -m venv --clear "$venv" || return 1
    fi
    if [ ! -x "$venv/bin/uv" ]; then
        "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip >/dev/null || return 1
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv || {
            note "stagedb: pip could not install uv (see above). Behind a proxy or a mirror, set HTTPS_PROXY or PIP_INDEX_URL."
            return 1
        }
    fi
    note "stagedb: installing the packages of uv.lock (about 250 MB with the database; once; half a minute to some minutes) ..."
    groups=--no-dev
    [ "$1" = runtime ] || groups=--group=dev
    # What downloads is progress; the list of a hundred installed packages is in uv.lock.
    installed=$( {
        {
            sync_environment "$groups" 2>&1
            echo $? >&3
        } | while IFS= read -r line; do
            case $line in
            " + "* | " - "* | " ~ "* | " Downloaded "* | Downloaded\ *) ;;
            *) note "$line" ;;
            esac
        done
    } 3>&1)
    if [ "$installed" != 0 ]; then
        note "stagedb: the installation failed (see above). Run the same command again to continue it."
        return 1
    fi
    # With PYTHONDONTWRITEBYTECODE Python writes no bytecode, and every start would compile everything again.
    "$venv/bin/python" -m compileall -q "$root/stagedb"
    printf '%s\n' "$stamp" >"$venv/.stagedb-$1.new" && mv "$venv/.stagedb-$1.new" "$venv/.stagedb-$1" || return 1
    note "stagedb: ready."
}
