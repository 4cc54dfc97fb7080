#!/usr/bin/env bash
# A real `vagrant up` with the project's Vagrantfile:  sudo tests/vm/vagrant.sh IMAGE_DIRECTORY RESULTS_DIRECTORY DRIVER
#
# Called by run.sh. The provider is libvirt (Debian's vagrant-libvirt), the box is made of the image that image.sh built:
# it has no boot loader, so the box' own Vagrantfile names the kernel. DRIVER is libvirt's: kvm, or qemu to emulate.
# Starts libvirtd if it does not run; leaves nothing behind but the results and libvirt's own, empty, iptables chains.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1

image="$(realpath "$1")" results="$(realpath "$2")"
driver="$3"
scratch="$(mktemp -d "$PWD/build/vm/vagrant.XXXXXX")"
port=8000
current=''  # process id of the step that runs
daemons=()  # process ids of what this script started
forwarding="$(cat /proc/sys/net/ipv4/ip_forward)"  # which libvirt turns on for its network
export VAGRANT_HOME="$scratch/home" VAGRANT_DOTFILE_PATH="$scratch/machine" VAGRANT_CWD="$PWD/vagrant"
export VAGRANT_CHECKPOINT_DISABLE=1 VAGRANT_DEFAULT_PROVIDER=libvirt VAGRANT_BOX_UPDATE_CHECK_DISABLE=1
export STRAGGLER_BOX=straggler-vm-test STRAGGLER_LIBVIRT_DRIVER="$driver" LIBVIRT_DEFAULT_URI=qemu:///system

# shellcheck disable=SC2317  # called by the trap
clean_up() {
    trap '' INT TERM
    if [[ -n $current ]] && kill "$current" 2>/dev/null; then wait "$current"; fi
    vagrant destroy --force >>"$results/destroy.log" 2>&1
    virsh vol-list default 2>/dev/null | awk '/straggler-vm-test/ { print $1 }' | while read -r volume; do
        virsh vol-delete --pool default "$volume" >>"$results/destroy.log" 2>&1
    done
    virsh net-destroy vagrant-libvirt >>"$results/destroy.log" 2>&1
    virsh net-undefine vagrant-libvirt >>"$results/destroy.log" 2>&1
    [[ ${#daemons[@]} -eq 0 ]] || { kill "${daemons[@]}"; wait "${daemons[@]}"; } 2>/dev/null
    echo "$forwarding" >/proc/sys/net/ipv4/ip_forward
    rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

step() {  # step NAME MINUTES COMMAND...
    local name="$1" minutes="$2" begin=$SECONDS outcome=ok
    shift 2
    echo "vm-test: $name ..."
    # Not in the foreground: bash would wait for its end before it heeds a signal.
    timeout --kill-after=20 "${minutes}m" "$@" >"$results/$name.log" 2>&1 &
    current=$!
    wait "$current" || outcome="failed ($?)"
    current=''
    printf '%s\t%s\t%d\n' "$name" "$outcome" $((SECONDS - begin)) >>"$results/summary.tsv"
    echo "vm-test: $name: $outcome, $((SECONDS - begin)) s"
    [[ $outcome == ok ]] || { tail -n 15 "$results/$name.log"; return 1; }
}

libvirt_answers() { virsh --quiet list >/dev/null 2>&1; }

start_libvirt() {
    libvirt_answers && return
    virtlogd >>"$results/libvirt.log" 2>&1 & daemons+=($!)
    libvirtd >>"$results/libvirt.log" 2>&1 & daemons+=($!)
    for _ in $(seq 100); do libvirt_answers && return; sleep 0.2; done
    return 1
}

box() {
    mkdir -p "$scratch/box"
    qemu-img convert -f raw -O qcow2 "$image/disk.img" "$scratch/box/box.img" || return 1
    echo '{"provider": "libvirt", "format": "qcow2", "virtual_size": 8}' >"$scratch/box/metadata.json"
    cat >"$scratch/box/Vagrantfile" <<VAGRANTFILE
Vagrant.configure("2") do |config|
  config.vm.boot_timeout = 900  # an emulated processor
  config.ssh.insert_key = false
  config.vm.provider "libvirt" do |libvirt|
    libvirt.kernel = "$image/vmlinuz"
    libvirt.initrd = "$image/initrd.img"
    libvirt.cmd_line = "root=/dev/vda rw console=ttyS0 net.ifnames=0 quiet tsc=reliable mitigations=off"
  end
end
VAGRANTFILE
    tar -cf "$scratch/test.box" -C "$scratch/box" metadata.json Vagrantfile box.img && rm -rf "$scratch/box"
    vagrant box add --provider libvirt --name "$STRAGGLER_BOX" "$scratch/test.box" && rm "$scratch/test.box"
}

# `vagrant up` ends with the message that says what to type.
up() { vagrant up --provider libvirt && grep -q "vagrant ssh -c 'sudo straggler demo'" "$results/vagrant-up.log"; }

provision_again() {
    local said
    said="$(vagrant provision 2>&1)"
    echo "$said"
    [[ $said == *'==> All is installed.'* && $said != *'==> Installed in'* ]]
}

lab_user() {
    vagrant ssh -c 'sudo -u lab sudo -n straggler labs' || return 1
    ! vagrant ssh -c 'sudo -u lab sudo -n id'
}

synced_folder() {
    vagrant ssh -c 'sha256sum /vagrant/README.md; ls -a /vagrant' | tee "$scratch/listing"
    grep -q "$(sha256sum <README.md | cut -d' ' -f1)" "$scratch/listing" && ! grep -qxE '\.git|build|results' "$scratch/listing"
}

# Nobody but this machine reaches the forwarded port, and this machine does.
forwarded_port() {
    vagrant ssh -c "sudo systemd-run --quiet python3 -m http.server --directory /vagrant/vagrant $port" || return 1
    for _ in $(seq 100); do curl -sf "http://127.0.0.1:$port/" >/dev/null && break; sleep 0.2; done
    curl -sf "http://127.0.0.1:$port/" || return 1
    ss -Hltn "sport = :$port"
    [[ "$(ss -Hltn "sport = :$port" | awk '{ print $4 }')" == "127.0.0.1:$port" ]]
}

rm -f "$results/summary.tsv"
for tool in vagrant virsh libvirtd rsync; do
    command -v "$tool" >/dev/null || { echo "error: $tool is not installed." >&2; exit 1; }
done
start_libvirt || { echo 'error: libvirtd does not start.' >&2; exit 1; }
export -f box up provision_again lab_user synced_folder forwarded_port
export image results scratch port
step box 10 bash -c box || exit 1
step vagrant-up 35 bash -c up || exit 1
step vagrant-provision 5 bash -c provision_again
step lab-user 3 bash -c lab_user
step synced-folder 3 bash -c synced_folder
step forwarded-port 3 bash -c forwarded_port
step doctor 5 vagrant ssh -c 'sudo straggler doctor'
[[ ! $(awk -F'\t' '$2 != "ok"' "$results/summary.tsv") ]]
