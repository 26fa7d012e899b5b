// Package kubeletconfig reads the configuration of a kubelet: files with a KubeletConfiguration
// (kubelet.config.k8s.io/v1beta1), a directory of drop-in files, and the flags of a kubelet that
// set a field of it. It turns them into the Configs of the components of an agent.
//
//	cfg, err := kubeletconfig.Load("/var/lib/kubelet/config.yaml", "")
//	…
//	if err := cfg.Validate(); err != nil { … } // all that is wrong, or that no agent can do
//	for _, n := range cfg.Notices() { … }      // what was given and changes nothing
//	s, err := cfg.Settings(node.DetectCapacity(os.DirFS("/")))
//	…
//	a, err := agent.New(agent.WithNode(s.Node), agent.WithConfig(s.Eviction), …)
//
// No field is ignored in silence: Fields says for each whether it is honoured, not supported, or has no
// meaning here, and why. FIELDS.md is that table.
package kubeletconfig
