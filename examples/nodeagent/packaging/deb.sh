#!/usr/bin/env bash
# deb.sh VERSION [BINARY]: builds nodeagent_VERSION_ARCH.deb in the current directory with dpkg-deb. Without a BINARY it builds one for
# GOARCH, which must then be amd64 or arm64. Files are dated SOURCE_DATE_EPOCH, so that the same input makes the same package.
# DEB_COMPRESSION is xz, gzip, zstd or none.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=${1:?the version, such as 0.37.0}
version=${version#v}
arch=$(dpkg-architecture -qDEB_HOST_ARCH 2>/dev/null || dpkg --print-architecture)
arch=${GOARCH:-$arch}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct 2>/dev/null || date +%s)}

install -d "$root"/{DEBIAN,etc/default,lib/systemd/system,usr/bin}
install -d -m 700 "$root"/etc/sublet/manifests
if [ -n "${2:-}" ]; then
  install -m 755 "$2" "$root/usr/bin/nodeagent"
else
  (cd "$here" && CGO_ENABLED=0 GOARCH=$arch go build -tags grpcnotrace -trimpath -ldflags '-s -w' -o "$root/usr/bin/nodeagent" ..)
fi
install -m 644 "$here/nodeagent.service" "$root/lib/systemd/system/nodeagent.service"
install -m 644 "$here/nodeagent.default" "$root/etc/default/nodeagent"
install -m 600 "$here/config.yaml" "$root/etc/sublet/config.yaml"
printf '/etc/default/nodeagent\n/etc/sublet/config.yaml\n' >"$root/DEBIAN/conffiles"
cat >"$root/DEBIAN/control" <<C
Package: nodeagent
Version: $version
Architecture: $arch
Maintainer: sublet <https://github.com/sublet-dev/agent>
Section: admin
Priority: optional
Installed-Size: $(du -sk --apparent-size "$root" | cut -f1)
Recommends: containerd | cri-o, dbus
Homepage: https://github.com/sublet-dev/agent
Description: node agent for static pods and clusters
 Runs pods on a CRI runtime, from manifests or as a node of a Kubernetes cluster.
C
# Pods run on while the package is upgraded or removed: the service is restarted, or stopped, and leaves them alone.
cat >"$root/DEBIAN/postinst" <<'C'
#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  if [ -z "$2" ]; then systemctl enable nodeagent.service; fi
  systemctl restart --no-block nodeagent.service
fi
C
cat >"$root/DEBIAN/prerm" <<'C'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then systemctl disable --now nodeagent.service; fi
C
cat >"$root/DEBIAN/postrm" <<'C'
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
C
chmod 755 "$root"/DEBIAN/{postinst,prerm,postrm}
dpkg-deb --root-owner-group -Z"${DEB_COMPRESSION:-xz}" --build "$root" "nodeagent_${version}_$arch.deb"
