// Package sanity tests the CSI driver of internal/csitest with the sanity suite of the CSI
// community. It is a module of its own, so that the suite is in no user's build.
package sanity
