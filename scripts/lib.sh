# Shared by the scripts, which source it. Expects bash with `set -euo pipefail`.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH="$PATH:/usr/sbin:/sbin"

say() { printf '%s\n' "$*" >&2; }
die() {
    say "error: $*"
    exit 1
}

# Installs Debian packages as root or through sudo; otherwise prints the line to run and stops.
install_packages() {
    local as=() packages=("$@")
    if [ "$(id -u)" != 0 ]; then
        if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
            as=(sudo)
        else
            say "These packages are missing: ${packages[*]}. Run this as root, then try again:"
            say ""
            say "    apt-get install -y --no-install-recommends ${packages[*]}"
            say ""
            exit 1
        fi
    fi
    command -v apt-get >/dev/null || die "install these with your package manager: ${packages[*]}"
    say "installing ${packages[*]}"
    local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${packages[@]}")
    # a bare machine has no package lists yet
    "${as[@]}" "${install[@]}" >/dev/null 2>&1 || {
        "${as[@]}" apt-get update -q >/dev/null
        "${as[@]}" "${install[@]}" >/dev/null
    }
}

# need WHAT=PACKAGE...: installs the packages whose WHAT, a command or an absolute path (globs allowed), is not there.
need() {
    local pair what missing=()
    for pair in "$@"; do
        what=${pair%%=*}
        case $what in
            /*) compgen -G "$what" >/dev/null || missing+=("${pair#*=}") ;;
            *) command -v "$what" >/dev/null || missing+=("${pair#*=}") ;;
        esac
    done
    [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
}

need_to_run() { need bwrap=bubblewrap tmux=tmux rsync=rsync git=git cc=build-essential; }

need_cargo() {
    command -v cargo >/dev/null || die "cargo is missing: install Rust 1.95 or newer, see https://rustup.rs"
}
