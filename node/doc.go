// Package node describes the node that an agent runs on: to pods, to admission and to the
// components that need its directories and cgroups.
//
// Config is a plain value. Check is pure; nothing here reads the machine.
package node
