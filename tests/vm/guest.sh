#!/usr/bin/env bash
# Runs in the guest, as root, started by systemd (see image.sh): what a user would do on a fresh machine, step by step.
#
# Every step's output goes to /root/results/NAME.log, its outcome and time to /root/results/summary.tsv and the console. All
# of it is written to the third disk after every step, as a tar archive: what there is survives when time is up.
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
    bring_back
    [[ $outcome == ok ]] || { tail -n 15 "$results/$name.log"; return 1; }
}

bring_back() {
    tar -cf /dev/vdc -C "$results" .
    sync
}

finish() {
    cp /var/log/straggler-*.log "$results/" 2>/dev/null || true
    journalctl -b --no-pager >"$results/journal.log" 2>&1 || true
    bring_back
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

# One exercise, small, as slow as this machine needs it, and it must be VALID. Calibration cannot know what else the host
# is going to do; an INVALID run (exit status 3) is repeated once, slower.
exercise() {
    local status=3 slowdown
    for slowdown in auto 1000000; do
        [[ $status -eq 3 ]] || break
        rm -rf "$results/exercise"
        straggler run m5_ecmp_collisions --set leaves=2 --set spines=2 --set hosts_per_leaf=2 --set size_bytes=393216 \
            --policies ecmp,dlb --iterations 1 --slowdown "$slowdown" --out "$results/exercise"
        status=$?
    done
    [[ $status -eq 0 ]] && straggler why "$results/exercise" && grep '"datapath": "system"' "$results/exercise/run.json"
}

live_tests() { .venv/bin/python -m pytest -q --durations=5 "$@"; }

export -f machine provision_again kernel_datapath imports test_tools exercise live_tests
export results
step machine 5 bash -c machine
step provision 25 vagrant/provision.sh --lab-user lab || exit 1
step provision-again 3 bash -c provision_again
step imports 5 bash -c imports
step kernel-datapath 3 bash -c kernel_datapath
step lab-user 3 runuser -u lab -- sudo -n straggler --help
step doctor 10 straggler doctor
step exercise 10 bash -c exercise
step test-tools 10 bash -c test_tools
step live-kernel-datapath 10 bash -c 'live_tests -s tests/vm/test_kernel_datapath.py'
step live-network 10 bash -c 'live_tests tests/live/test_network.py -k "TestMininet and not iperf3 and not round_trip or TestNeighbours"'
step live-policies 10 bash -c 'live_tests tests/live/test_run.py -k every_policy'
step unit 15 .venv/bin/python -m pytest -q tests/unit
