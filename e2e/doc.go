// Package e2e runs pods as people write them on real containerd with the whole
// agent, and looks at them from the inside. It holds tests and the manifests in
// testdata only; each manifest begins with a sentence of what it shows.
package e2e
