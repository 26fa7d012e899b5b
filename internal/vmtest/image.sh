#!/usr/bin/env bash
# image.sh DIR: builds what vmtest boots: a Debian with systemd, cgroup v2, containerd and runc as DIR/disk.img, with its kernel and initrd.
# It needs root and the Debian packages debootstrap and e2fsprogs, and takes some minutes. An image of the same version is kept.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=${1:?the directory of the image}
suite=bookworm
size=4G # sparse
packages=systemd,systemd-sysv,dbus,udev,kmod,iproute2,procps,linux-image-cloud-amd64,initramfs-tools
packages+=,containerd,runc,containernetworking-plugins,busybox-static

version=$(cat "$here/image.sh" "$here"/guest/* | sha256sum | cut -d ' ' -f 1)
if [ "$(cat "$dir/version" 2>/dev/null)" = "$version" ]; then exit; fi
mkdir -p "$dir"
work=$(mktemp -d "$dir/build.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root

# The mirror of this machine, or Debian's own.
mirror=$(awk '/^URIs:/ {print $2; exit} /^deb / {for (i = 2; i <= NF; i++) if ($i ~ /:\/\//) {print $i; exit}}' \
  /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null || true)
case $mirror in http*) ;; *) mirror=http://deb.debian.org/debian ;; esac

# Nothing is started while the packages are installed, and the initrd has only the drivers that qemu needs.
debootstrap --variant=minbase --include="$packages" "$suite" "$root" "$mirror" >"$work/log" 2>&1 || {
  tail -n 20 "$work/log" >&2
  exit 1
}
printf 'MODULES=list\nCOMPRESS=gzip\nFSTYPE=ext4\n' >"$root/etc/initramfs-tools/conf.d/vmtest"
printf 'virtio_pci\nvirtio_blk\next4\ncrc32c_generic\n' >"$root/etc/initramfs-tools/modules"
chroot "$root" update-initramfs -u >>"$work/log" 2>&1
cp "$root"/boot/vmlinuz-* "$work/vmlinuz"
cp "$root"/boot/initrd.img-* "$work/initrd"
rm -rf "$root"/boot/* "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale}

echo vm >"$root/etc/hostname"
echo '127.0.0.1 localhost vm' >"$root/etc/hosts"
echo '/dev/vda / ext4 defaults 0 1' >"$root/etc/fstab"
printf 'overlay\nveth\nbr_netfilter\n' >"$root/etc/modules-load.d/vmtest.conf"
echo 'net.ipv4.ip_forward=1' >"$root/etc/sysctl.d/vmtest.conf"
# Nodes keep their journal: a test reads it after the power was lost.
mkdir -p "$root/var/log/journal"
install -m 755 "$here/guest/vmtest" "$root/usr/local/sbin/vmtest"
install -m 644 "$here/guest/vmtest.service" "$root/etc/systemd/system/vmtest.service"
mkdir -p "$root/etc/systemd/system/multi-user.target.wants" "$root/host"
ln -s ../vmtest.service "$root/etc/systemd/system/multi-user.target.wants/vmtest.service"
# A test that needs containerd as a service configures and starts it.
rm -f "$root/etc/systemd/system/multi-user.target.wants/containerd.service"
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer systemd-timesyncd.service getty@tty1.service; do
  ln -sf /dev/null "$root/etc/systemd/system/$unit"
done

truncate -s "$size" "$work/disk.img"
mke2fs -q -t ext4 -E lazy_itable_init=1,lazy_journal_init=1 -d "$root" "$work/disk.img"
rm -f "$dir/version"
mv "$work/disk.img" "$work/vmlinuz" "$work/initrd" "$dir/"
echo "$version" >"$dir/version"
