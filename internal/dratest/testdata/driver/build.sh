#!/bin/bash
# build.sh FILE: builds the DRA driver of the tests, with Kubernetes' helper for drivers from the Go module proxy.
set -euo pipefail
file=$(realpath -m "${1:?the file to build}")
cd "$(dirname "$0")"
GOFLAGS= CGO_ENABLED=0 GOWORK=off go build -trimpath -o "$file" .
