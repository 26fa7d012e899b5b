package podspec

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Limits of resolvers, by resolv.conf(5) and the API.
const (
	maxNameservers  = 3
	maxSearches     = 32
	maxSearchLength = 2048
	maxHostname     = 64
)

// network checks names, DNS and hosts.
func (v *validator) network(path *field.Path) {
	spec := &v.pod.Spec
	if spec.Hostname != "" {
		v.check(path.Child("hostname"), spec.Hostname, validation.IsDNS1123Label)
	}
	if spec.Subdomain != "" {
		v.check(path.Child("subdomain"), spec.Subdomain, validation.IsDNS1123Label)
	}
	if name := spec.HostnameOverride; name != nil {
		at := path.Child("hostnameOverride")
		v.check(at, *name, validation.IsDNS1123Subdomain)
		if len(*name) > maxHostname {
			v.errs = append(v.errs, field.TooLong(at, *name, maxHostname))
		}
		if spec.HostNetwork {
			v.forbidden(at, "a pod on the host network has the host's name")
		}
		if spec.SetHostnameAsFQDN != nil && *spec.SetHostnameAsFQDN {
			v.forbidden(at, "not together with setHostnameAsFQDN")
		}
	}
	oneOf(v, path.Child("dnsPolicy"), spec.DNSPolicy,
		corev1.DNSClusterFirst, corev1.DNSClusterFirstWithHostNet, corev1.DNSDefault, corev1.DNSNone)
	if spec.DNSPolicy == corev1.DNSNone && (spec.DNSConfig == nil || len(spec.DNSConfig.Nameservers) == 0) {
		v.required(path.Child("dnsConfig", "nameservers"), "dnsPolicy None leaves the pod with these alone")
	}
	if spec.DNSConfig != nil {
		v.dns(path.Child("dnsConfig"), spec.DNSConfig)
	}
	for i, alias := range spec.HostAliases {
		at := path.Child("hostAliases").Index(i)
		v.ip(at.Child("ip"), alias.IP)
		for j, name := range alias.Hostnames {
			v.check(at.Child("hostnames").Index(j), name, validation.IsDNS1123Subdomain)
		}
	}
}

// ip checks an address that is written to a file of the pod. As in an API server since 1.36,
// leading zeros are invalid, because some programs read octal numbers, and so are IPv4
// addresses mapped into IPv6.
func (v *validator) ip(path *field.Path, ip string) {
	v.errs = append(v.errs, validation.IsValidIPForLegacyField(path, ip, true, nil)...)
}

func (v *validator) dns(path *field.Path, c *corev1.PodDNSConfig) {
	if len(c.Nameservers) > maxNameservers {
		v.errs = append(v.errs, field.TooMany(path.Child("nameservers"), len(c.Nameservers), maxNameservers))
	}
	for i, server := range c.Nameservers {
		v.ip(path.Child("nameservers").Index(i), server)
	}
	if len(c.Searches) > maxSearches {
		v.errs = append(v.errs, field.TooMany(path.Child("searches"), len(c.Searches), maxSearches))
	}
	if len(strings.Join(c.Searches, " ")) > maxSearchLength {
		v.invalid(path.Child("searches"), len(c.Searches), "together longer than 2048 characters")
	}
	for i, search := range c.Searches {
		if search == "." {
			continue
		}
		// Names with underscores can be resolved, although they are not valid host names.
		v.check(path.Child("searches").Index(i), strings.TrimSuffix(search, "."), validation.IsDNS1123SubdomainWithUnderscore)
	}
	for i, option := range c.Options {
		v.need(path.Child("options").Index(i).Child("name"), option.Name, nil)
	}
}

// placement checks the fields that select the node and the runtime.
func (v *validator) placement(path *field.Path) {
	spec := &v.pod.Spec
	v.errs = append(v.errs, metavalidation.ValidateLabels(spec.NodeSelector, path.Child("nodeSelector"))...)
	if spec.PriorityClassName != "" {
		v.check(path.Child("priorityClassName"), spec.PriorityClassName, validation.IsDNS1123Subdomain)
	}
	if spec.RuntimeClassName != nil {
		v.check(path.Child("runtimeClassName"), *spec.RuntimeClassName, validation.IsDNS1123Subdomain)
	}
	if spec.OS != nil {
		oneOf(v, path.Child("os", "name"), spec.OS.Name, corev1.Linux, corev1.Windows)
	}
	for i := range spec.Tolerations {
		v.toleration(path.Child("tolerations").Index(i), &spec.Tolerations[i])
	}
	if a := spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		at := path.Child("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
		terms := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		if len(terms) == 0 {
			v.required(at, "a node selector without terms matches no node")
		}
		for i, term := range terms {
			v.nodeTerm(at.Index(i), term)
		}
	}
}

func (v *validator) toleration(path *field.Path, t *corev1.Toleration) {
	if t.Key != "" {
		v.check(path.Child("key"), t.Key, validation.IsQualifiedName)
	} else if t.Operator != corev1.TolerationOpExists {
		v.invalid(path.Child("operator"), t.Operator, "must be Exists when there is no key")
	}
	switch value := path.Child("value"); t.Operator {
	case corev1.TolerationOpExists:
		if t.Value != "" {
			v.invalid(value, t.Value, "must be empty when operator is Exists")
		}
	case corev1.TolerationOpLt, corev1.TolerationOpGt:
		if _, err := strconv.ParseInt(t.Value, 10, 64); err != nil {
			v.invalid(value, t.Value, "must be an integer when operator is Lt or Gt")
		}
	case corev1.TolerationOpEqual, "":
		v.check(value, t.Value, validation.IsValidLabelValue)
	}
	if t.Operator != "" {
		oneOf(v, path.Child("operator"), t.Operator, corev1.TolerationOpEqual, corev1.TolerationOpExists,
			corev1.TolerationOpLt, corev1.TolerationOpGt)
	}
	if t.Effect != "" {
		oneOf(v, path.Child("effect"), t.Effect, corev1.TaintEffectNoSchedule,
			corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)
	}
	if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
		v.invalid(path.Child("effect"), t.Effect, "must be NoExecute when tolerationSeconds is set")
	}
}

func (v *validator) nodeTerm(path *field.Path, term corev1.NodeSelectorTerm) {
	for i, r := range term.MatchExpressions {
		at := path.Child("matchExpressions").Index(i)
		v.check(at.Child("key"), r.Key, validation.IsQualifiedName)
		v.nodeRequirement(at, r)
	}
	for i, r := range term.MatchFields {
		at := path.Child("matchFields").Index(i)
		oneOf(v, at.Child("key"), r.Key, "metadata.name")
		oneOf(v, at.Child("operator"), r.Operator, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn)
		if len(r.Values) != 1 {
			v.required(at.Child("values"), "exactly one")
		}
	}
}

func (v *validator) nodeRequirement(path *field.Path, r corev1.NodeSelectorRequirement) {
	values := path.Child("values")
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) == 0 {
			v.required(values, "for operator In or NotIn")
		}
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			v.forbidden(values, "not for operator Exists or DoesNotExist")
		}
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if len(r.Values) != 1 {
			v.required(values, "exactly one for operator Gt or Lt")
		}
	default:
		oneOf(v, path.Child("operator"), r.Operator, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn,
			corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist, corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt)
	}
}
