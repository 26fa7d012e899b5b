#!/bin/bash
# build.sh FILE [PACKAGE]: builds kube-apiserver, or another program of Kubernetes such as cmd/kube-scheduler, from the Go module proxy. test/e2e is
# the suite of end-to-end tests, and ginkgo what runs it. kube-apiserver takes ten minutes of two cores once; Go caches the rest.
# go.mod replaces the staging modules of k8s.io/kubernetes by their releases. `build.sh -update VERSION` writes it for another release.
set -euo pipefail
cd "$(dirname "$0")"
export GOFLAGS= CGO_ENABLED=0 GOWORK=off
if [ "${1:-}" = -update ]; then
  version=$2 staging=v0.${2#1.}
  go mod download "k8s.io/kubernetes@v$version"
  k=$(go env GOMODCACHE)/k8s.io/kubernetes@v$version
  {
    printf 'module github.com/sublet-dev/agent/internal/kubetest/apiserver\n\ngo 1.26.0\n\ngodebug default=go1.26\n\nrequire k8s.io/kubernetes v%s\n\n' "$version"
    sed -n '/^require (/,/^)/p' "$k/go.mod" | sed "s# v0\.0\.0\$# $staging#; s# v0\.0\.0 // indirect# $staging // indirect#"
    printf '\nreplace (\n'
    sed -n '/^replace (/,/^)/p' "$k/go.mod" | awk -v s="$staging" '/=>/ {print "\t" $1 " => " $1 " " s}'
    printf ')\n'
  } >go.mod
  install -m 644 "$k/go.sum" go.sum
  go list -mod=mod -deps -test k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/test/e2e >/dev/null # completes go.sum; there is no package here for `go mod tidy`
  exit
fi
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
x=k8s.io/component-base/version
file=${1:?the file to build} package=${2:-cmd/kube-apiserver} command=(go build)
case $package in
  ginkgo) package=github.com/onsi/ginkgo/v2/ginkgo ;;
  test/e2e) command=(go test -c -vet=off) package=k8s.io/kubernetes/$package ;;
  *) package=k8s.io/kubernetes/$package ;;
esac
"${command[@]}" -trimpath -o "$file" \
  -ldflags "-s -w -X $x.gitVersion=$version -X $x.gitMajor=1 -X $x.gitMinor=$(cut -d. -f2 <<<"$version") -X $x.gitTreeState=clean -X $x.gitCommit=0" \
  "$package"
