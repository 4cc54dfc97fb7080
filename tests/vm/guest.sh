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
    # The modules that a full distribution kernel has and a trimmed one may not. Ubuntu's for virtual machines has no
    # rdma_rxe; the labs do not need it.
    local modules=(openvswitch sch_netem sch_red sch_tbf) module
    grep -q '^ID=ubuntu' /etc/os-release || modules+=(rdma_rxe)
    for module in "${modules[@]}"; do
        modprobe "$module" && echo "module $module: loaded" || return 1
    done
}

# The second run must find nothing to do, need no network to see that, and leave every file as it was.
provision_again() {
    local said changed before=/run/before
    ip link set eth0 down
    touch "$before"
    said="$(vagrant/provision.sh --lab-user lab 2>&1)"
    # The test's own results, and what a running system writes by itself.
    changed="$(find / -xdev \( -newer "$before" -o -cnewer "$before" \) ! -type d \
        ! -path '/root/results/*' ! -path '/var/log/*' ! -path '/var/lib/systemd/*')"
    ip link set eth0 up
    echo "$said"
    echo "files changed by it: ${changed:-none}"
    [[ $said == '==> All is installed.' && -z $changed ]]
}

# May run straggler as root without a password, and nothing else.
lab_user() {
    runuser -u lab -- sudo -n straggler labs || return 1
    ! runuser -u lab -- sudo -n id
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
    PIP_CONSTRAINT="$PWD/vagrant/constraints.txt" .venv/bin/python -m pip install --no-input pytest pytest-xdist hypothesis
}

doctor() {
    local said status=0
    said="$(straggler doctor)" || status=$?
    echo "$said"
    [[ $status -eq 0 && $said == *'datapath: kernel'* ]]
}

bench() { .venv/bin/python -m tests.bench.run datapaths && cp results/bench.json "$results/bench.json"; }

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
    [[ $status -eq 0 ]] && straggler why "$results/exercise" && grep '"datapath": "kernel"' "$results/exercise/run.json"
}

live_tests() { .venv/bin/python -m pytest -q --durations=5 "$@"; }

# All of them. On an emulated processor not those of the core's properties in virtual time, which know nothing of the
# kernel and take minutes each, nor those of the installer on played machines: it has just been run on this one.
unit_tests() {
    local left_out=() name
    if [[ "$(systemd-detect-virt)" == qemu ]]; then
        for name in topologies/test_{dcqcn_loop,dcqcn_nic,rnic_transport,scheduler}.py controllers/test_dlb.py vagrant; do
            left_out+=("--ignore=tests/unit/$name")
        done
        echo "left out: ${left_out[*]}"
    fi
    .venv/bin/python -m pytest -q -n 2 --hypothesis-profile=few --durations=15 "${left_out[@]}" tests/unit
}

export -f machine provision_again lab_user kernel_datapath imports test_tools doctor bench exercise live_tests unit_tests
export results
step machine 5 bash -c machine
step provision 20 vagrant/provision.sh --lab-user lab || exit 1
step provision-again 3 bash -c provision_again
step imports 5 bash -c imports
step kernel-datapath 3 bash -c kernel_datapath
step lab-user 3 bash -c lab_user
step doctor 5 bash -c doctor
step exercise 10 bash -c exercise
step test-tools 5 bash -c test_tools
step live-kernel-datapath 10 bash -c 'live_tests -s tests/vm'
step live-policies 5 bash -c 'live_tests tests/live/test_run.py -k every_policy'
step live-network 5 bash -c 'live_tests tests/live/test_network.py -k "TestMininet and not tcp and not iperf3 and not round_trip or TestNeighbours"'
step bench-datapaths 5 bash -c bench
step unit 15 bash -c unit_tests
