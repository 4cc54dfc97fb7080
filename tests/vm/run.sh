#!/usr/bin/env bash
# Proves the installer and the lab on a machine of its own:  sudo tests/vm/run.sh [SUITE...]     (make vm-test)
#
# For each suite (bookworm, trixie, noble; bookworm if none is named) it boots a fresh image with the distribution's full kernel
# under QEMU, puts the checkout in and runs tests/vm/guest.sh there. The image is built once and kept in build/vm/; every
# run starts from its pristine state. Results: results/vm/SUITE/ (console.log, summary.tsv, a log for each step, what the
# lab wrote).
#
# The suite "vagrant" is bookworm's image as a box for a real `vagrant up` (tests/vm/vagrant.sh).
#
# Uses KVM where it works and QEMU's own processor emulation (about 20 times slower) elsewhere.
# VM_MINUTES=40 is when the guest is given up; VM_ACCELERATOR=tcg or kvm decides for it.
set -euo pipefail
cd "$(dirname "$0")/../.."

minutes="${VM_MINUTES:-40}"
guest=''   # QEMU's process id
scratch=''

# shellcheck disable=SC2317  # called by the trap
clean_up() {
    if [[ -n "$guest" ]] && kill "$guest" 2>/dev/null; then wait "$guest" 2>/dev/null || true; fi
    [[ -z "$scratch" ]] || rm -rf "$scratch"
}
trap clean_up EXIT
trap 'echo "interrupted: the guest is stopped and its disk removed." >&2; exit 130' INT TERM

[[ $EUID -eq 0 ]] || { echo 'error: building the image needs root.' >&2; echo '  do: sudo make vm-test' >&2; exit 1; }

# KVM can be there and unusable (nested, or no permission): only a machine that starts with it tells.
accelerator() {
    if [[ -n "${VM_ACCELERATOR:-}" ]]; then
        echo "$VM_ACCELERATOR"
    elif [[ -w /dev/kvm ]] && grep -qE '\b(vmx|svm)\b' /proc/cpuinfo &&
        echo quit | timeout 20 qemu-system-x86_64 -accel kvm -display none -monitor stdio >/dev/null 2>&1; then
        echo kvm
    else
        echo tcg
    fi
}

# The working tree as it is, without what was built, installed or measured in it.
pack_checkout() {
    tar -cf "$1" --exclude-caches --exclude=./.git --exclude=./.venv --exclude=./build --exclude=./results \
        --exclude=__pycache__ --exclude='*.egg-info' --exclude='*.so' --exclude='*.o' --exclude='.*_cache' \
        --exclude=.hypothesis --exclude=.vagrant .
}

boot() {  # boot SUITE RESULTS
    local image="build/vm/$1" results="$2" kind deadline console="$2/console.log"
    kind="$(accelerator)"
    scratch="$(mktemp -d build/vm/run.XXXXXX)"
    qemu-img create -q -f qcow2 -F raw -b "$PWD/$image/disk.img" "$scratch/disk.qcow2"
    pack_checkout "$scratch/checkout.tar"
    truncate -s 512M "$scratch/results.tar"
    echo "$1: booting ($kind, given $minutes minutes), console in $console"
    # tsc=reliable: Linux finds the time stamp counters of an emulated machine unsynchronised, and its other clocks cost a
    # trap into QEMU for every reading. Nehalem is the oldest processor that NumPy runs on, and emulated faster than what
    # has wide vectors; what protects a processor from its guests' guesses only costs an emulated one time.
    # shellcheck disable=SC2054  # the commas are QEMU's
    local options=(-accel "$kind" -smp 2 -m 4096 -display none -no-reboot -serial "file:$console"
        -kernel "$image/vmlinuz" -initrd "$image/initrd.img"
        -append 'root=/dev/vda rw console=ttyS0 net.ifnames=0 quiet systemd.show_status=0 panic=-1 tsc=reliable mitigations=off'
        -drive "file=$scratch/disk.qcow2,if=virtio,format=qcow2,cache=unsafe"
        -drive "file=$scratch/checkout.tar,if=virtio,format=raw,readonly=on"
        -drive "file=$scratch/results.tar,if=virtio,format=raw,cache=unsafe"
        -nic user,model=virtio-net-pci -device virtio-rng-pci)
    [[ $kind == kvm ]] && options+=(-cpu host) || options+=(-cpu Nehalem)
    : >"$console"
    qemu-system-x86_64 "${options[@]}" </dev/null 2>"$results/qemu.log" &
    guest=$!
    deadline=$((SECONDS + minutes * 60))
    tail -n +1 -f --pid="$guest" "$console" | grep --line-buffered -a '^vm-test: ' &
    local follower=$!
    while kill -0 "$guest" 2>/dev/null; do
        if [[ $SECONDS -gt $deadline ]]; then
            echo "error: $1: the guest is not done after $minutes minutes" >&2
            kill "$guest"
            break
        fi
        sleep 1
    done
    wait "$guest" 2>/dev/null || true
    guest=''
    wait "$follower" || true
    tar -xf "$scratch/results.tar" -C "$results" 2>/dev/null || true
    rm -rf "$scratch"
    scratch=''
}

# What came of it, in words; fails unless every step passed and the guest got to its end.
judge() {  # judge SUITE RESULTS
    local summary="$2/summary.tsv" failed
    if [[ ! -s $summary ]]; then
        tail -n 20 "$2/console.log" "$2/qemu.log" >&2
        echo "error: $1: the guest brought no results back" >&2
        return 1
    fi
    failed="$(awk -F'\t' '$2 != "ok" { printf " %s (%s, %s.log)", $1, $2, $1 }' "$summary")"
    if [[ -n $failed ]]; then
        echo "error: $1: failed:$failed; see $2/" >&2
        return 1
    elif ! grep -qa '^vm-test: finished' "$2/console.log"; then
        echo "error: $1: the guest ended in or after '$(grep -a '^vm-test: ' "$2/console.log" | tail -n 1)'; see $2/" >&2
        return 1
    fi
    echo "$1: all $(wc -l <"$summary") steps passed; logs in $2/"
}

build_image() {
    local stamp
    stamp="$(sha256sum tests/vm/image.sh | cut -d' ' -f1)"
    if [[ "$(cat "build/vm/$1/stamp" 2>/dev/null || true)" != "$stamp" ]]; then
        nice tests/vm/image.sh "$1" "build/vm/$1"
        echo "$stamp" >"build/vm/$1/stamp"
    fi
}

vagrant_up() {  # vagrant_up RESULTS
    local driver=kvm
    [[ "$(accelerator)" == kvm ]] || driver=qemu
    echo "vagrant: libvirt with driver $driver"
    tests/vm/vagrant.sh build/vm/bookworm "$1" "$driver" &
    guest=$!
    local outcome=0
    wait "$guest" || outcome=$?
    guest=''
    return "$outcome"
}

status=0
for suite in "${@:-bookworm}"; do
    results="results/vm/$suite"
    build_image "${suite/#vagrant/bookworm}"
    rm -rf "$results"
    mkdir -p "$results"
    if [[ $suite == vagrant ]]; then
        vagrant_up "$results" || { echo "error: vagrant: see $results/" >&2; status=1; }
    else
        boot "$suite" "$results"
        judge "$suite" "$results" || status=1
    fi
done
exit "$status"
