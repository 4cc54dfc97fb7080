#!/usr/bin/env bash
# The installer of straggler, for the Vagrant VM and for any Debian 12/13 or Ubuntu 22.04/24.04 machine.
#
#   sudo vagrant/provision.sh [--dev] [--vm] [--lab-user NAME] [--any-distribution]
#
#   --dev               also what the tests need (clang with libFuzzer, shellcheck, ruff, mypy, pytest, ...)
#   --vm                also what `make vm-test` needs (debootstrap, QEMU; Vagrant and libvirt where there are packages)
#   --lab-user NAME     also a login NAME that may run `sudo straggler` without a password (the VM's user `lab`)
#   --any-distribution  try it on an untested distribution that has apt
#
# Each step looks at the state of the machine and does only what is missing, so that a second run changes nothing, needs
# neither network nor root, and is over in a second or two. It owns: the packages it installs, .venv/ and the built native
# core in the checkout, /etc/sysctl.d/60-straggler.conf, /usr/local/bin/straggler and, with --lab-user,
# /etc/sudoers.d/straggler. It starts Open vSwitch when it is not running. It never touches a bridge.
set -euo pipefail
PATH="$PATH:/usr/sbin:/sbin"  # a user's path has neither on Debian

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
VENV="$ROOT/.venv"
CONSTRAINTS="$ROOT/vagrant/constraints.txt"
# Before every absolute path; the tests of this script play a machine in a directory.
MACHINE="${STRAGGLER_MACHINE:-}"
OS_RELEASE="$MACHINE/etc/os-release"
COMMAND="$MACHINE/usr/local/bin/straggler"
PYTHON="$MACHINE/usr/bin/python3"  # the distribution's, for that is where it puts Mininet
OVS_CTL="$MACHINE/usr/share/openvswitch/scripts/ovs-ctl"
LOGS="$MACHINE/var/log"

PACKAGES=(mininet openvswitch-switch iproute2 iputils-ping ethtool iperf3 tcpdump tshark procps ca-certificates
          python3 python3-venv python3-dev gcc libc6-dev make)
DEV_PACKAGES=(clang shellcheck git)
DEV_OPTIONAL_PACKAGES=(libclang-rt-dev vagrant)  # not every release has them, or needs them
VM_PACKAGES=(debootstrap qemu-system-x86 qemu-utils e2fsprogs)
VM_OPTIONAL_PACKAGES=(vagrant vagrant-libvirt libvirt-daemon-system libvirt-clients dnsmasq-base rsync curl)

# Open vSwitch moves all userspace traffic through AF_PACKET sockets whose buffers have the sizes that these had when the
# daemon started: with the usual 208 KB a burst overruns them and frames vanish inside the switch.
SOCKET_BUFFER_BYTES=8388608
SYSCTL_KEYS=(net.core.wmem_default net.core.rmem_default)
SYSCTL_FILE="$MACHINE/etc/sysctl.d/60-straggler.conf"

is_root() { [[ "$(id -u)" -eq 0 ]]; }

changes=0
say() { printf '==> %s\n' "$*"; }
note() { printf '    %s\n' "$*"; }
warn() { printf 'warning: %s\n' "$*" >&2; }
die() {  # die SENTENCE REMEDY
    printf 'error: %s\n  do: %s\n' "$1" "$2" >&2
    exit 1
}

# Every step calls this before its first change; what it is about to do is the argument.
changing() {
    is_root || die "the next step needs root: $1" 'run it again with sudo: sudo make install'
    changes=$((changes + 1))
    say "$1"
}

usage() { sed -n '2,/^set -/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

parse_arguments() {
    dev=0 vm=0 any_distribution=0 lab_user=''
    while [[ $# -gt 0 ]]; do
        case "$1" in
            --dev) dev=1 ;;
            --vm) vm=1 ;;
            --any-distribution) any_distribution=1 ;;
            --lab-user)
                [[ ${2:-} =~ ^[a-z_][a-z0-9_-]{0,30}$ ]] || { usage >&2; exit 2; }
                lab_user="$2"
                shift
                ;;
            -h | --help) usage; exit 0 ;;
            *) printf 'error: unknown argument %s\n' "$1" >&2; usage >&2; exit 2 ;;
        esac
        shift
    done
}

# --- is this a machine we know? -------------------------------------------------------------------------------------

check_machine() {
    local elsewhere='use the virtual machine: cd vagrant && vagrant up'
    [[ "$(uname -s)" == Linux ]] || die "straggler runs on Linux only, and this is $(uname -s)." "$elsewhere"
    local name=unknown id=unknown
    if [[ -r "$OS_RELEASE" ]]; then
        # shellcheck source=/dev/null
        id="$(. "$OS_RELEASE" && printf '%s %s' "${ID:-unknown}" "${VERSION_ID:-}")"
        # shellcheck source=/dev/null
        name="$(. "$OS_RELEASE" && printf '%s' "${PRETTY_NAME:-$id}")"
    fi
    case "$id" in
        'debian 12' | 'debian 13' | 'ubuntu 22.04' | 'ubuntu 24.04') return ;;
    esac
    [[ $any_distribution -eq 1 ]] ||
        die "$name is not supported; Debian 12 and 13, Ubuntu 22.04 and 24.04 are." \
            "$elsewhere (or, if it has apt, try vagrant/provision.sh --any-distribution)"
    command -v apt-get >/dev/null || die "$name has no apt-get." "$elsewhere"
    warn "$name has not been tested."
}

under_systemd() { [[ -d "$MACHINE/run/systemd/system" ]]; }

# --- packages of the distribution -----------------------------------------------------------------------------------

# One dpkg-query for all: prints those of its arguments that are not installed.
not_installed() {
    local -A state=()
    local package status
    while read -r package status; do
        state["${package%%:*}"]="$status"
    done < <(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)
    for package in "$@"; do
        [[ ${state[$package]:-} == installed ]] || printf '%s\n' "$package"
    done
}

# Ends with the reason that the log of apt-get or pip gives.  explain_failure LOG WHAT
explain_failure() {
    local log="$1" what="$2" offline untrusted unknown_package
    untrusted='certificate verif|CERTIFICATE_VERIFY_FAILED'
    offline='could not resolve|temporary failure|name resolution|could not connect|connection (failed|refused|timed out)'
    offline+='|network is unreachable|NewConnectionError|max retries exceeded|read timed out|ProxyError|failed to fetch'
    unknown_package='unable to locate package|has no installation candidate'
    # The first line of the log that matches, or what matters of it: pip wraps the cause in its own objects.
    first() {
        grep -iE -m1 "$1" "$log" | cut -c1-400 | sed -E \
            "s/^ *//; s/.*(Failed to establish a new connection|certificate verify failed)/\1/; s/'?\)+\).*//"
    }
    if grep -q 'No space left on device' "$log"; then
        die "$what failed: the disk is full." "free about 2 GB, then run it again"
    elif grep -qiE "$untrusted" "$log"; then
        die "$what failed: the server's certificate is not trusted here: $(first "$untrusted")" \
            'behind a proxy that opens TLS, put its CA into /usr/local/share/ca-certificates and run update-ca-certificates'
    elif grep -qiE "$offline" "$log"; then
        die "$what failed: no answer from the network: $(first "$offline")" \
            "check the connection, DNS and http_proxy/https_proxy, then run it again (log: $log)"
    elif grep -qiE "$unknown_package" "$log"; then
        die "$what failed: $(first "$unknown_package")" \
            "enable the distribution's main (Ubuntu: universe) repository, then run it again (log: $log)"
    fi
    die "$what failed: $(first '^ *(E|ERROR|error): ' || tail -n 1 "$log")" "read $log, then run it again"
}

apt() {  # apt WHAT ARGUMENTS...: apt-get with its output in a log
    local what="$1" log="$LOGS"/straggler-apt.log
    shift
    DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get -q -y -o DPkg::Lock::Timeout=300 \
        -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold "$@" </dev/null >"$log" 2>&1 9<&- ||
        explain_failure "$log" "$what"
}

install_packages() {
    local -a wanted=("${PACKAGES[@]}") optional=() missing=() extra=()
    local package
    if [[ $dev -eq 1 ]]; then
        wanted+=("${DEV_PACKAGES[@]}")
        optional+=("${DEV_OPTIONAL_PACKAGES[@]}")
    fi
    if [[ $vm -eq 1 ]]; then
        wanted+=("${VM_PACKAGES[@]}")
        optional+=("${VM_OPTIONAL_PACKAGES[@]}")
    fi
    [[ -z "$lab_user" ]] || wanted+=(sudo)
    mapfile -t missing < <(not_installed "${wanted[@]}")
    if [[ ${#optional[@]} -gt 0 ]]; then mapfile -t optional < <(not_installed "${optional[@]}"); fi

    if [[ ${#missing[@]} -gt 0 ]]; then
        changing "Installing ${missing[*]}"
        local controller_before
        controller_before="$(not_installed openvswitch-testcontroller)"
        # After an interrupted installation apt refuses to go on before this.
        if [[ -n "$(dpkg --audit 2>/dev/null)" ]]; then dpkg --configure -a >/dev/null 2>&1 || true; fi
        apt 'Reading the package lists (apt-get update)' -o APT::Update::Error-Mode=any update
    fi
    for package in "${optional[@]}"; do
        if [[ -n "$(apt-cache show "$package" 2>/dev/null)" ]]; then extra+=("$package"); fi
    done
    if [[ ${#extra[@]} -gt 0 ]]; then changing "Installing ${extra[*]}"; fi
    if [[ ${#missing[@]} -gt 0 || ${#extra[@]} -gt 0 ]]; then
        apt 'Installing packages (apt-get install)' install --no-install-recommends "${missing[@]}" "${extra[@]}"
    fi
    # Mininet may bring a controller that listens on every address; it is turned off only if it came with us.
    if [[ -n "${controller_before:-}" && -z "$(not_installed openvswitch-testcontroller)" ]]; then
        note 'turning off openvswitch-testcontroller, which the lab does not use'
        if under_systemd; then
            systemctl disable --now openvswitch-testcontroller >/dev/null 2>&1 || true
        else
            service openvswitch-testcontroller stop >/dev/null 2>&1 || true
            update-rc.d openvswitch-testcontroller disable >/dev/null 2>&1 || true
        fi
    fi
}

# --- Open vSwitch ---------------------------------------------------------------------------------------------------

switch_running() {
    local daemon pid
    for daemon in ovsdb-server ovs-vswitchd; do
        pid="$(cat "$MACHINE/run/openvswitch/$daemon.pid" 2>/dev/null)" || return 1
        [[ "$(cat "$MACHINE/proc/$pid/comm" 2>/dev/null)" == "$daemon" ]] || return 1
    done
}

# Comes before the packages, because installing Open vSwitch starts it.
set_socket_buffers() {
    local lines key setting now small=0
    lines="$(printf "%s = $SOCKET_BUFFER_BYTES\n" "${SYSCTL_KEYS[@]}")"
    if [[ "$(cat "$SYSCTL_FILE" 2>/dev/null || true)" != "$lines" ]]; then
        changing "Setting the socket buffers for Open vSwitch (in $SYSCTL_FILE)"
        mkdir -p "${SYSCTL_FILE%/*}"
        printf '%s\n' "$lines" >"$SYSCTL_FILE"
    fi
    for key in "${SYSCTL_KEYS[@]}"; do
        setting="$MACHINE/proc/sys/${key//.//}"
        now="$(cat "$setting" 2>/dev/null || echo 0)"
        [[ $now -lt $SOCKET_BUFFER_BYTES ]] || continue
        is_root || changing "Setting $key"
        if printf '%s\n' "$SOCKET_BUFFER_BYTES" 2>/dev/null >"$setting"; then
            small=1
        else
            warn "$key is $now here and cannot be changed (a container?): set it to $SOCKET_BUFFER_BYTES on the host."
        fi
    done
    [[ $small -eq 1 ]] && switch_running || return 0
    if [[ -z "$(ovs-vsctl --timeout=10 list-br 2>/dev/null)" ]]; then
        say 'Restarting Open vSwitch (it has no bridges) for its larger socket buffers'
        if under_systemd; then systemctl restart openvswitch-switch; else ovs_ctl restart; fi
    else
        warn "Open vSwitch still has small socket buffers, and bridges that must not be disturbed: restart it when you can."
    fi
}

# A daemon must not inherit the lock of this script (9).
ovs_ctl() { "$OVS_CTL" --system-id=random "$@" >>"$LOGS/straggler-ovs.log" 2>&1 9<&-; }

start_switch() {
    ! switch_running || return 0
    changing 'Starting Open vSwitch'
    local log="$LOGS"/straggler-ovs.log remedy
    remedy="read $log and $LOGS/openvswitch/, then run it again"
    : >"$log"
    if under_systemd; then
        remedy="read 'journalctl -u ovsdb-server -u ovs-vswitchd', then run it again"
        systemctl start openvswitch-switch >>"$log" 2>&1 || die 'Open vSwitch does not start.' "$remedy"
    else
        ovs_ctl start || die 'Open vSwitch does not start.' "$remedy"
    fi
    ovs-vsctl --timeout=10 show >>"$log" 2>&1 || die 'Open vSwitch starts, but does not answer ovs-vsctl.' "$remedy"
}

# --- the virtual environment and the native core --------------------------------------------------------------------

# What the environment was installed from: when this changes, pip has something to do.
recipe() {
    { cat "$ROOT/setup.py" "$ROOT/pyproject.toml" "$CONSTRAINTS"; "$PYTHON" -VV; printf '%s\n' "$VENV"; } |
        sha256sum | cut -d' ' -f1
}

pip() {  # pip WHAT ARGUMENTS...
    local what="$1" log="$LOGS"/straggler-pip.log
    shift
    # Absolute, and twice: see the constraints file.
    PIP_CONSTRAINT="$CONSTRAINTS" PIP_BUILD_CONSTRAINT="$CONSTRAINTS" PIP_DISABLE_PIP_VERSION_CHECK=1 \
        PIP_ROOT_USER_ACTION=ignore PIP_PROGRESS_BAR=off \
        "$VENV/bin/python" -m pip --no-input "$@" </dev/null >"$log" 2>&1 9<&- || {
        # What failed by itself has been undone by pip; an environment that was whole still is.
        [[ ! -e "$VENV/.recipe" ]] || rm -f "$VENV/.incomplete"
        explain_failure "$log" "$what"
    }
}

install_environment() {
    # The marker lies in the environment from before its first file until pip has finished: an interrupted
    # installation is never mistaken for a whole one.
    local marker="$VENV/.incomplete" stamp="$VENV/.recipe" extras='' recipe_now
    recipe_now="$(recipe)"
    [[ $dev -eq 0 ]] || extras='[dev]'
    if [[ -e "$VENV" ]] && { [[ -e "$marker" ]] || ! grep -qsF "$VENV" "$VENV/bin/activate" ||
        ! grep -qsx 'include-system-site-packages = true' "$VENV/pyvenv.cfg" ||
        [[ "$("$VENV/bin/python" -VV 2>/dev/null)" != "$("$PYTHON" -VV)" ]]; }; then
        changing "Removing $VENV, which is incomplete or of another Python or place"
        rm -rf "$VENV"
    fi
    if [[ ! -e "$VENV" ]]; then
        changing "Creating $VENV"
        mkdir "$VENV"
        touch "$marker"
        "$PYTHON" -m venv --system-site-packages "$VENV" ||
            die 'The virtual environment cannot be created.' 'see the message above; is the disk full?'
    fi
    # The extra [dev] holds everything that the plain installation does.
    ! grep -qsxF "$recipe_now [dev]" "$stamp" || return 0
    ! grep -qsxF "$recipe_now $extras" "$stamp" || return 0
    changing "Installing the Python packages$([[ -z "$extras" ]] || echo ', with those of the tests') (a few minutes the first time)"
    touch "$marker"
    pip 'Installing the Python packages (pip)' install --editable "$ROOT$extras"
    printf '%s %s\n' "$recipe_now" "$extras" >"$stamp"
    rm -f "$marker"
}

# Python loads the one for its exact version before the one for any version, so none may be older than the sources.
core_is_current() {
    local core
    for core in "$ROOT"/topologies/fabricd/_core.*.so; do
        [[ -e "$core" ]] || return 1
        [[ -z "$(find "$ROOT/topologies/fabricd" \( -name '*.[ch]' -o -name build_core.py \) -newer "$core" -print -quit)" ]] ||
            return 1
    done
}

# pip builds the core too, but only when it installs: this is for sources that changed since.
build_core() {
    ! core_is_current || return 0
    changing 'Building the native core'
    local log="$ROOT/build/core.log"
    mkdir -p "$ROOT/build"
    rm -f "$ROOT"/topologies/fabricd/_core.*.so
    (cd "$ROOT" && "$VENV/bin/python" setup.py -q build_ext --inplace --force) </dev/null >"$log" 2>&1 || {
        grep -E -m5 'error' "$log" >&2 || true
        die 'The native core does not compile.' "see the message above and $log"
    }
}

# --- the command and who may run it ---------------------------------------------------------------------------------

link_command() {
    local target="$VENV/bin/straggler"
    [[ "$(readlink "$COMMAND" 2>/dev/null)" != "$target" ]] || return 0
    if [[ -e "$COMMAND" && ! -L "$COMMAND" ]]; then
        warn "$COMMAND is a file that did not come from here; it stays. The command is $target."
        return 0
    fi
    changing "Linking $COMMAND to $target"
    ln -sfn "$target" "$COMMAND"
}

allow_lab_user() {
    [[ -n "$lab_user" ]] || return 0
    local file="$MACHINE/etc/sudoers.d/straggler"
    local rule="$lab_user ALL=(root) NOPASSWD: $COMMAND"
    if ! id "$lab_user" >/dev/null 2>&1; then
        changing "Creating the user $lab_user"
        useradd --create-home --shell /bin/bash "$lab_user"
    fi
    is_root || return 0  # only root can read the rule
    [[ "$(cat "$file" 2>/dev/null || true)" != "$rule" ]] || return 0
    changing "Letting $lab_user run 'sudo straggler' without a password"
    printf '%s\n' "$rule" >"$file.new"
    chmod 0440 "$file.new"
    visudo -cqf "$file.new" || { rm -f "$file.new"; die "The sudo rule for $lab_user is not valid." 'report this as a bug'; }
    mv "$file.new" "$file"
}

main() {
    parse_arguments "$@"
    check_machine
    exec 9<"${BASH_SOURCE[0]}"
    flock -n 9 || { say 'Waiting for another installation to finish'; flock 9; }
    trap 'printf "\ninterrupted: run it again, it goes on where it must.\n" >&2; exit 130' INT TERM
    set_socket_buffers
    install_packages
    start_switch
    install_environment
    build_core
    link_command
    allow_lab_user
    if [[ $changes -gt 0 ]]; then say "Installed in $SECONDS s. Try: sudo straggler demo"; else say 'All is installed.'; fi
}

main "$@"
