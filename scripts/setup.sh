# shellcheck shell=bash
#
# Sourced by scripts/test and scripts/lab, from the top of the checkout: puts all they need into .venv, and is quick
# when it is there already. Only Chromium comes from outside .venv, from Debian.

venv=$PWD/.venv

step() {
  printf '\n[%4d s] %s\n' "$SECONDS" "$1"
}

die() {
  printf '\n%s: %s\n' "${0##*/}" "$1" >&2
  exit 1
}

is_debian() {
  grep -qx 'ID=debian' /etc/os-release 2>/dev/null
}

can_be_root() {
  [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

apt_install() {
  as_root apt-get -qq update &&
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "$@" >/dev/null
}

# Python packages, at the versions of requirements/test.txt. PYTHON names the interpreter, python3 unless it is set.
set_up_python() {
  local python=${PYTHON:-python3}
  step "Python packages"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "$python is missing or older than 3.11; name a newer one: PYTHON=/path/to/python3 $0"
  # Debian keeps what `python -m venv` needs in a package of its own.
  if ! "$python" -c 'import ensurepip' 2>/dev/null && is_debian && can_be_root; then
    apt_install python3-venv || die "apt-get could not install python3-venv"
  fi
  [ -x "$venv/bin/pip" ] || "$python" -m venv "$venv" || die "$python -m venv $venv failed"
  [ -x "$venv/bin/uv" ] || "$venv/bin/pip" install -q --disable-pip-version-check "$(grep '^uv==' requirements/test.txt)" ||
    die "pip could not install uv"
  export VIRTUAL_ENV=$venv PATH=$venv/bin:$PATH
  uv pip install -q -r requirements/test.txt || die "the packages of requirements/test.txt could not be installed"
}

# Whether Node is new enough is hatch_build.py's to say; see there.
node_can_build() {
  python -c 'import sys, hatch_build; sys.exit(not hatch_build.node_can_build())'
}

# The package, editable, with its browser half: what is older than its sources is built anew (hatch_build.py).
set_up_project() {
  step "The package and its browser half"
  node_can_build || uv pip install -q -r requirements/node.txt || die "Node could not be installed"
  # The lock file is the law, and the cache is the user's, not one in the checkout.
  export YARN_ENABLE_IMMUTABLE_INSTALLS=true YARN_ENABLE_GLOBAL_CACHE=true
  quietly env -C labextension jlpm install --immutable || die "jlpm install failed"
  quietly uv pip install --no-deps --no-build-isolation --reinstall-package jupyter-gpu-guard -e . ||
    die "the package could not be built"
}

# Shows what a command said only if it failed.
quietly() {
  local said
  said=$("$@" 2>&1) || {
    printf '%s\n' "$said" >&2
    return 1
  }
}

# Leaves the path of a Chromium in CHROMIUM, or nothing where there is none and none can be installed.
set_up_chromium() {
  step "Chromium"
  if [ -n "${CHROMIUM:-}" ]; then
    [ -x "$CHROMIUM" ] || die "CHROMIUM=$CHROMIUM is not a program"
  elif ! command -v chromium >/dev/null && is_debian && can_be_root; then
    apt_install chromium || die "apt-get could not install chromium; to leave the browser tests out: $0 --fast"
  fi
  export CHROMIUM=${CHROMIUM:-$(command -v chromium || true)}
  echo "${CHROMIUM:-none: the browser tests will be skipped}"
}
