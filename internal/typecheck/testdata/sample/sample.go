// Package sample compiles on 64-bit Linux alone.
package sample

import "example.com/sample/sub"

// Size is what is left of the dependency's limit.
const Size = sub.Limit - 1<<20
