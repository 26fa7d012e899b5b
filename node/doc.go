// Package node describes the node that an agent runs on: to pods, to admission, to the
// components that need its directories and cgroups, and to an API server.
//
//   - Config is a plain value that says how the node is to be used.
//   - DetectCapacity, DiskCapacity and DetectInfo read the machine.
//   - Available subtracts reservations from a capacity.
//   - Conditions computes the conditions of the node from checks and reporters.
//
// Everything but the detection is pure.
package node
