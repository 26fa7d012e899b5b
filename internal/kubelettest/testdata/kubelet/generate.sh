#!/bin/bash
# generate.sh [PACKAGE...]: writes the tables of cases in the testdata directories again, with the code of the kubelet of
# internal/kubetest/apiserver/go.mod. It copies that code, adds the tests beside this script, which can call what is not
# exported, and runs them: all, or those of a package such as pkg/kubelet/eviction. CASES is another directory for the tables.
set -euo pipefail
here=$(realpath "$(dirname "$0")") root=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cd "$root/internal/kubetest/apiserver"
read -r source VERSION < <(GOWORK=off GOFLAGS='' go list -m -f '{{.Dir}} {{.Version}}' k8s.io/kubernetes)
export VERSION
cp -r --no-preserve=mode "$source"/{cmd,pkg,plugin,test,third_party} "$copy"
sed 's,^module .*,module k8s.io/kubernetes,; /^require k8s.io\/kubernetes /d' go.mod >"$copy/go.mod"
cp go.sum "$copy"
cp -r "$here"/{cases,pkg} "$copy"
cd "$here"
if [ $# = 0 ]; then
  mapfile -t packages < <(find pkg -name '*_cases_test.go' -printf '%h\n' | sort -u)
  set -- "${packages[@]}"
fi
cd "$copy"
for package in "$@"; do
  GOWORK=off GOFLAGS=-mod=mod CGO_ENABLED=0 CASES=${CASES:-$root} go test -trimpath -vet=off -covermode=set -count=1 -v -run 'Test.*Cases$' "./$package" |
    grep -E '^(---|ok|FAIL|    cases.go)'
done
