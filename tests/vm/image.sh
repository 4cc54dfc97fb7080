#!/usr/bin/env bash
# Builds the disk image of a fresh Debian with its full kernel:  tests/vm/image.sh SUITE DIRECTORY
#
# Leaves disk.img (ext4, no boot loader), vmlinuz and initrd.img in DIRECTORY. What the guest is told about this
# machine is only how it reaches package mirrors: its certificates, apt's proxy and checks, pip's index and proxy.
# Beyond that it is what debootstrap makes, and one unit that runs tests/vm/guest.sh from a second disk at boot.
set -euo pipefail

suite="$1" out="$2"
mirror="${VM_MIRROR:-http://deb.debian.org/debian}"
packages=linux-image-amd64,systemd-sysv,udev,dbus,kmod,iproute2,ca-certificates,sudo
root="$out/root"

# --one-file-system: never into what a failed debootstrap may have left mounted.
clean_up() { umount "$root/proc" "$root/sys" 2>/dev/null || true; rm -rf --one-file-system "$root"; }
trap clean_up EXIT
trap 'exit 130' INT TERM

mkdir -p "$out"
clean_up
echo "image: debootstrap $suite"
debootstrap --variant=minbase --include="$packages" "$suite" "$root" "$mirror" >"$out/debootstrap.log" 2>&1 || {
    tail -n 5 "$out/debootstrap.log" >&2
    echo "error: debootstrap failed (log: $out/debootstrap.log)" >&2
    exit 1
}

echo straggler >"$root/etc/hostname"
echo '/dev/vda / ext4 errors=remount-ro 0 1' >"$root/etc/fstab"

# QEMU's user-mode network.
cat >"$root/etc/systemd/network/10-user-mode.network" <<'END'
[Match]
Name=eth0
[Network]
Address=10.0.2.15/24
Gateway=10.0.2.2
END
rm -f "$root/etc/resolv.conf"
echo 'nameserver 10.0.2.3' >"$root/etc/resolv.conf"
chroot "$root" systemctl -q enable systemd-networkd systemd-networkd-wait-online

# How this machine reaches the mirrors.
cp -a /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates/" 2>/dev/null || true
chroot "$root" update-ca-certificates >/dev/null 2>&1
apt-config dump | grep -E '^Acquire::(https?::|Check-|Retries)' >"$root/etc/apt/apt.conf.d/90host" || true
{
    echo '[global]'
    /usr/bin/python3 -m pip config list 2>/dev/null | sed -nE \
        "s/^(global|:env:)\.(cert|index-url|extra-index-url|proxy|timeout|trusted-host)='(.*)'$/\2 = \3/p" |
        grep -v 'file:' | sort -u -t= -k1,1 || true
} >"$root/etc/pip.conf"
env | grep -iE '^(https?|no)_proxy=' >>"$root/etc/environment" || true

cat >"$root/etc/systemd/system/vm-test.service" <<'END'
[Unit]
Description=Tests of the checkout on the second disk
After=network-online.target
Wants=network-online.target
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
chroot "$root" systemctl -q enable vm-test
chroot "$root" systemctl -q mask serial-getty@ttyS0  # it would hang the console up under the tests

cp "$root"/boot/vmlinuz-* "$out/vmlinuz"
cp "$root"/boot/initrd.img-* "$out/initrd.img"
echo "image: writing $out/disk.img"
rm -f "$out/disk.img" "$out/disk.img.new"
mke2fs -q -t ext4 -d "$root" "$out/disk.img.new" 8G
mv "$out/disk.img.new" "$out/disk.img"
