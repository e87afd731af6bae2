#!/usr/bin/env bash
# Installs what some tests want beside Toutates: peers, judges, and libraries that write models. Without them those tests
# are skipped. When all is there, it takes a second.
#
# Debian's packages need root, or sudo; npm's go to node_modules, PyPI's to .venv, and two programs of the benchmark, which
# a test compares with, to .bench-venvs. What cannot be had, for want of a network or of root, is left out with a line
# that says so: the exit status is always 0.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
told=$(mktemp -d)
trap 'rm -rf "$told"' EXIT

left_out() { echo "Left out, and its tests are skipped: $*"; }

# A program, or a library, and Debian's package that has it.
programs=(
  chromium:chromium promtool:prometheus haproxy:haproxy nginx:nginx docker-registry:docker-registry
  h2load:nghttp2-client zsh:zsh fish:fish node:nodejs npm:npm libb64.so.0d:libb64-0d
)

is_here() {
  case $1 in
    chromium) for name in chromium chromium-browser google-chrome chrome; do command -v $name && return; done; false ;;
    *.so.*) PATH=$PATH:/sbin ldconfig -p | grep -F "$1" ;;
    *) PATH=$PATH:/usr/sbin command -v "$1" ;;
  esac > /dev/null 2>&1
}

lacking() {
  for program in "${programs[@]}"; do is_here "${program%%:*}" || echo "${program##*:}"; done
}

apt() {
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=1 -o Acquire::http::Timeout=30 "$@" \
    >> "$told/apt" 2>&1 < /dev/null
}

# Some of them are services, which nobody wants to run here: not now, and not after the next start of the machine.
debian() {
  local packages policy=/usr/sbin/policy-rc.d
  mapfile -t packages < <(lacking)
  [ ${#packages[@]} -gt 0 ] || return 0
  if ! command -v apt-get > /dev/null; then
    left_out "${packages[*]} (Debian's, and there is no apt-get)"
    return
  elif [ "$(id -u)" = 0 ]; then
    root=(env)
  elif command -v sudo > /dev/null && { [ -t 0 ] || sudo -n true 2> /dev/null; }; then
    root=(sudo)
    sudo -v
  else
    left_out "${packages[*]} (as root: apt-get install --no-install-recommends ${packages[*]})"
    return
  fi
  if [ ! -e $policy ]; then
    trap '"${root[@]}" rm -f '$policy EXIT
    printf '#!/bin/sh\nexit 101\n' | "${root[@]}" install -m 755 /dev/stdin $policy
  fi
  apt update
  apt install --yes --no-install-recommends "${packages[@]}" ||
    for package in "${packages[@]}"; do apt install --yes --no-install-recommends "$package"; done
  if command -v systemctl > /dev/null; then
    for package in "${packages[@]}"; do "${root[@]}" systemctl --quiet disable "$package.service" 2> /dev/null; done
  fi
  mapfile -t packages < <(lacking)
  [ ${#packages[@]} = 0 ] || left_out "${packages[*]} (apt-get: $(grep '^[EW]:' "$told/apt" | tail -n 1))"
}

# Both by one command: npm takes away what a command does not name.
node() {
  local bin=node_modules/.bin
  [ -x $bin/s3rver ] && [ -x $bin/azurite-blob ] && return
  # Without a network npm hangs for many minutes: it is asked for something small first.
  timeout 30 npm view s3rver version > "$told/npm" 2>&1 < /dev/null || { left_out "s3rver and azurite (npm has no index)"; return; }
  timeout 600 npm install --no-save --no-audit --no-fund --fetch-retries=1 s3rver azurite > "$told/npm" 2>&1 < /dev/null
  [ -x $bin/s3rver ] && [ -x $bin/azurite-blob ] || left_out "s3rver and azurite (npm: $(tail -n 1 "$told/npm"))"
}

python() {
  local extras=(bench deploy sklearn xgboost)
  [ .venv/.peers -nt pyproject.toml ] && return
  timeout 60 python3 -m pip --retries 1 index versions skops > /dev/null 2>&1 < /dev/null ||
    { left_out "Python's packages (pip has no index)"; return; }
  make --silent .venv/.dev > "$told/make" 2>&1 || { left_out "Python's packages (make .venv/.dev failed)"; return; }
  pip() { .venv/bin/python -m pip install --quiet --disable-pip-version-check --retries 1 --only-binary :all: -e ".[$1]"; }

  pip "$(IFS=,; echo "${extras[*]}")" > "$told/pip" 2>&1 && touch .venv/.peers && return
  for extra in "${extras[@]}"; do
    pip "$extra" > "$told/pip" 2>&1 || left_out "the extra $extra (pip: $(grep ERROR "$told/pip" | tail -n 1))"
  done
}

benchmark() {
  .venv/bin/python - "$1" << 'END' > "$told/$1" 2>&1 || left_out "$1 ($(tail -n 1 "$told/$1"))"
import sys
from pathlib import Path
from bench.environments import Environments
getattr(Environments(Path(".bench-venvs").absolute()), sys.argv[1])()
END
}

{ debian; node; } &
python &
wait
if [ -x .venv/bin/python ]; then
  benchmark fastapi &
  benchmark perf_analyzer &
  wait
fi
