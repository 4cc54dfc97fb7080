#!/usr/bin/env bash
# Runs in the guest, as root, started by systemd (see image.sh): what a user would do on a fresh machine, step by step.
#
# Every step's output goes to /root/results/NAME.log, its outcome and time to /root/results/summary.tsv and the console. All
# of it is written to the third disk at the end, as a tar archive.
set -uo pipefail

checkout=/root/straggler
results=/root/results
mkdir -p "$results"
cd "$checkout" || exit 1

step() {  # step NAME MINUTES COMMAND...: 0 if the command succeeded
    local name="$1" minutes="$2" begin=$SECONDS outcome=ok
    shift 2
    echo "vm-test: $name ..."
    timeout --kill-after=20 "${minutes}m" "$@" >"$results/$name.log" 2>&1 || outcome="failed ($?)"
    printf '%s\t%s\t%d\n' "$name" "$outcome" $((SECONDS - begin)) >>"$results/summary.tsv"
    echo "vm-test: $name: $outcome, $((SECONDS - begin)) s"
    [[ $outcome == ok ]] || { tail -n 15 "$results/$name.log"; return 1; }
}

finish() {
    cp /var/log/straggler-*.log "$results/" 2>/dev/null || true
    journalctl -b --no-pager >"$results/journal.log" 2>&1 || true
    sync
    tar -cf /dev/vdc -C "$results" .
    sync
    echo 'vm-test: finished'
}
trap finish EXIT

machine() {
    uname -a
    cat /etc/os-release
    systemctl --version | head -n 1
    systemd-detect-virt || true
    # The modules that a full distribution kernel has and a trimmed one may not.
    for module in openvswitch sch_netem sch_red sch_tbf rdma_rxe; do
        modprobe "$module" && echo "module $module: loaded" || return 1
    done
}

# The second run must find nothing to do, and need no network to see that.
provision_again() {
    local said
    ip link set eth0 down
    said="$(vagrant/provision.sh --lab-user lab 2>&1)"
    ip link set eth0 up
    echo "$said"
    [[ $said == '==> All is installed.' ]]
}

kernel_datapath() {
    ovs-vsctl add-br vm-test-br -- set bridge vm-test-br datapath_type=system || return 1
    ovs-appctl dpctl/show
    local kind
    kind="$(ovs-appctl dpctl/dump-dps)"
    ovs-vsctl del-br vm-test-br
    [[ $kind == system@* ]]
}

imports() {
    .venv/bin/python -c '
import topologies.fabricd._core, mininet.net, numpy, matplotlib, pyarrow, scapy, ryu
print(topologies.fabricd._core.__file__, numpy.__version__, pyarrow.__version__, ryu.__file__)'
}

# Not `provision.sh --dev`: the compilers and linters that it brings take longer here than all the rest.
test_tools() {
    PIP_CONSTRAINT="$PWD/vagrant/constraints.txt" .venv/bin/python -m pip install --no-input pytest hypothesis
}

export -f machine provision_again kernel_datapath imports test_tools
step machine 5 bash -c machine
step provision 25 vagrant/provision.sh --lab-user lab || exit 1
step provision-again 3 bash -c provision_again
step imports 5 bash -c imports
step kernel-datapath 3 bash -c kernel_datapath
step lab-user 3 runuser -u lab -- sudo -n straggler --help
step doctor 10 straggler doctor
step test-tools 10 bash -c test_tools
step unit 15 .venv/bin/python -m pytest -q tests/unit
