#!/usr/bin/env bash
# Builds the disk image of a fresh Debian or Ubuntu with its full kernel:  tests/vm/image.sh SUITE DIRECTORY
#
# Leaves disk.img (ext4, no boot loader), vmlinuz and initrd.img in DIRECTORY. What the guest is told about this
# machine is only how it reaches package mirrors: its certificates, apt's proxy and checks, pip's index and proxy.
# Beyond that it is what debootstrap makes, with what Vagrant asks of a box (vagrant.sh: a user, its public key, sshd,
# rsync) and a unit that runs tests/vm/guest.sh from a second disk at boot, if there is one.
set -euo pipefail

suite="$1" out="$2"
mirror=http://deb.debian.org/debian
kernel=linux-image-amd64
options=(--variant=minbase) script=()
if [[ $suite == noble ]]; then
    mirror=http://archive.ubuntu.com/ubuntu
    kernel=linux-image-virtual,initramfs-tools
    options+=('--components=main,universe')
    script=(/usr/share/debootstrap/scripts/gutsy)  # the same for all of Ubuntu's releases; Debian's is older than this one
    keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg
    # Debian 12 has no package of Ubuntu's keys: what is fetched is not verified, and runs in this test's guest only.
    if [[ -r $keys ]]; then options+=("--keyring=$keys"); else options+=(--no-check-gpg); fi
fi
packages=$kernel,systemd-sysv,systemd-resolved,udev,dbus,kmod,iproute2,ca-certificates,sudo
packages+=,openssh-server,rsync
vagrant_key="$(ruby -e 'print Gem::Specification.find_by_name("vagrant").gem_dir' 2>/dev/null || true)/keys/vagrant.pub"
root="$out/root"

# --one-file-system: never into what a failed debootstrap may have left mounted.
clean_up() { umount "$root/proc" "$root/sys" 2>/dev/null || true; rm -rf --one-file-system "$root"; }
trap clean_up EXIT
trap 'exit 130' INT TERM

mkdir -p "$out"
clean_up
echo "image: debootstrap $suite"
debootstrap "${options[@]}" --include="$packages" "$suite" "$root" "$mirror" "${script[@]}" >"$out/debootstrap.log" 2>&1 || {
    tail -n 5 "$out/debootstrap.log" >&2
    echo "error: debootstrap failed (log: $out/debootstrap.log)" >&2
    exit 1
}

echo straggler >"$root/etc/hostname"
echo '/dev/vda / ext4 errors=remount-ro 0 1' >"$root/etc/fstab"

cat >"$root/etc/systemd/network/10-dhcp.network" <<'END'
[Match]
Name=eth0
[Network]
DHCP=ipv4
END
ln -sf ../run/systemd/resolve/stub-resolv.conf "$root/etc/resolv.conf"
# Without /proc there, newer ones complain, and do it all the same.
chroot "$root" systemctl -q enable systemd-networkd systemd-networkd-wait-online systemd-resolved 2>/dev/null

if [[ -r $vagrant_key ]]; then
    chroot "$root" useradd --create-home --shell /bin/bash vagrant
    install -D -m 0600 "$vagrant_key" "$root/home/vagrant/.ssh/authorized_keys"
    chroot "$root" chown -R vagrant:vagrant /home/vagrant/.ssh
    chmod 0700 "$root/home/vagrant/.ssh"
    echo 'vagrant ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/vagrant"
fi

# How this machine reaches the mirrors.
cp -a /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates/" 2>/dev/null || true
chroot "$root" update-ca-certificates >/dev/null 2>&1
apt-config dump | grep -E '^Acquire::(https?::|Check-|Retries)' >"$root/etc/apt/apt.conf.d/90host" || true
{
    echo '[global]'
    /usr/bin/python3 -m pip config list 2>/dev/null | sed -nE \
        "s/^(global|:env:)\.(cert|index-url|extra-index-url|proxy|timeout|trusted-host)='(.*)'$/\2 = \3/p" |
        grep -v 'file:' | sort -u -t= -k1,1 || true
    # Python compiles what it imports; ahead of time, all that pip brings takes an emulated processor minutes.
    printf '[install]\nno-compile = true\n'
} >"$root/etc/pip.conf"
echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/90throw-away"
env | grep -iE '^(https?|no)_proxy=' >>"$root/etc/environment" || true

cat >"$root/etc/systemd/system/vm-test.service" <<'END'
[Unit]
Description=Tests of the checkout on the second disk
After=network-online.target
Wants=network-online.target
ConditionPathExists=/dev/vdb
[Service]
Type=exec
Environment=HOME=/root LANG=C.UTF-8
EnvironmentFile=-/etc/environment
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
ExecStartPre=/bin/mkdir -p /root/straggler
ExecStartPre=/bin/tar -xf /dev/vdb -C /root/straggler
ExecStart=/root/straggler/tests/vm/guest.sh
ExecStopPost=/bin/systemctl --no-block poweroff
[Install]
WantedBy=multi-user.target
END
chroot "$root" systemctl -q enable vm-test 2>/dev/null
# It would hang the console up under the tests.
chroot "$root" systemctl -q mask serial-getty@ttyS0 2>/dev/null

cp "$root"/boot/vmlinuz-* "$out/vmlinuz"
cp "$root"/boot/initrd.img-* "$out/initrd.img"
echo "image: writing $out/disk.img"
rm -f "$out/disk.img" "$out/disk.img.new"
mke2fs -q -t ext4 -d "$root" "$out/disk.img.new" 8G >/dev/null
mv "$out/disk.img.new" "$out/disk.img"
