// Package cri carries out runtime plans over the Container Runtime Interface,
// version 1. gRPC stops here: what comes in and goes out are the types of
// package runtime.
package cri
