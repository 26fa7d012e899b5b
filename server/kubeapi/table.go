package kubeapi

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// table is how kubectl shows a resource.
type table struct {
	columns []metav1.TableColumnDefinition
	cells   func(o object, now time.Time) []any
}

// none is shown for what an object does not have.
const none = "<none>"

// columns returns definitions. Names after "|" are shown by kubectl get -o wide alone.
func columns(names ...string) (all []metav1.TableColumnDefinition) {
	var priority int32
	for i, name := range names {
		if name == "|" {
			priority = 1
			continue
		}
		c := metav1.TableColumnDefinition{Name: name, Type: "string", Priority: priority}
		if i == 0 {
			c.Format = "name"
		}
		all = append(all, c)
	}
	return all
}

// row returns an object as a row.
func (t table) row(o object) metav1.TableRow {
	if t.cells == nil {
		return metav1.TableRow{Cells: []any{}}
	}
	row := metav1.TableRow{Cells: t.cells(o, time.Now())}
	if pod, ok := o.(*corev1.Pod); ok {
		switch pod.Status.Phase {
		case corev1.PodSucceeded, corev1.PodFailed:
			row.Conditions = []metav1.TableRowCondition{{Type: metav1.RowCompleted, Status: metav1.ConditionTrue, Reason: string(pod.Status.Phase), Message: "The pod has ended."}}
		case corev1.PodPending, corev1.PodRunning, corev1.PodUnknown:
		}
	}
	return row
}

// age is the time since then, as kubectl prints it.
func age(then metav1.Time, now time.Time) string {
	if then.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(then.Time))
}

func orNone(s string) string {
	if s == "" {
		return none
	}
	return s
}

func namespaceTable() table {
	return table{columns("Name", "Status", "Age"), func(o object, now time.Time) []any {
		return []any{o.GetName(), string(corev1.NamespaceActive), age(o.GetCreationTimestamp(), now)}
	}}
}

func configMapTable() table {
	return table{columns("Name", "Data", "Age"), func(o object, now time.Time) []any {
		n := 0
		if cm, ok := o.(*corev1.ConfigMap); ok {
			n = len(cm.Data) + len(cm.BinaryData)
		}
		return []any{o.GetName(), n, age(o.GetCreationTimestamp(), now)}
	}}
}

func serviceTable() table {
	return table{columns: columns("Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "|", "Selector")}
}

func nodeTable() table {
	return table{
		columns("Name", "Status", "Roles", "Age", "Version", "|", "Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"),
		func(o object, now time.Time) []any {
			n, ok := o.(*corev1.Node)
			if !ok {
				return nil
			}
			info := n.Status.NodeInfo
			kernel := orUnknown(info.KernelVersion)
			if info.Architecture != "" {
				kernel += " (" + info.Architecture + ")"
			}
			return []any{
				n.Name, nodeStatus(n), nodeRoles(n), age(n.CreationTimestamp, now), info.KubeletVersion, nodeAddress(n, corev1.NodeInternalIP), nodeAddress(n, corev1.NodeExternalIP),
				orUnknown(info.OSImage), kernel, orUnknown(info.ContainerRuntimeVersion),
			}
		},
	}
}

func orUnknown(s string) string {
	if s == "" {
		return "<unknown>"
	}
	return s
}

func nodeStatus(n *corev1.Node) string {
	text := "Unknown"
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			text = "NotReady"
			if c.Status == corev1.ConditionTrue {
				text = "Ready"
			}
		}
	}
	if n.Spec.Unschedulable {
		text += ",SchedulingDisabled"
	}
	return text
}

func nodeRoles(n *corev1.Node) string {
	const prefix = "node-role.kubernetes.io/"
	var roles []string
	for label, value := range n.Labels {
		if role, ok := strings.CutPrefix(label, prefix); ok && role != "" {
			roles = append(roles, role)
		} else if label == "kubernetes.io/role" && value != "" {
			roles = append(roles, value)
		}
	}
	slices.Sort(roles)
	return orNone(strings.Join(roles, ","))
}

func nodeAddress(n *corev1.Node, t corev1.NodeAddressType) string {
	for _, a := range n.Status.Addresses {
		if a.Type == t {
			return a.Address
		}
	}
	return none
}

func eventTable() table {
	defs := columns("Last Seen", "Type", "Reason", "Object", "Subobject", "Source", "Message", "First Seen", "Count", "Name")
	defs[0].Format, defs[9].Format = "", "name"
	for _, wide := range []int{4, 5, 7, 8, 9} {
		defs[wide].Priority = 1
	}
	return table{defs, func(o object, now time.Time) []any {
		e, ok := o.(*corev1.Event)
		if !ok {
			return nil
		}
		first, last := e.FirstTimestamp, e.LastTimestamp
		if first.IsZero() {
			first = metav1.Time{Time: e.EventTime.Time}
		}
		if last.IsZero() {
			last = first
		}
		object := strings.ToLower(e.InvolvedObject.Kind) + "/" + e.InvolvedObject.Name
		return []any{
			age(last, now), e.Type, e.Reason, object, e.InvolvedObject.FieldPath, eventSource(e), strings.TrimSpace(e.Message), age(first, now), int64(max(e.Count, 1)), e.Name,
		}
	}}
}

func eventSource(e *corev1.Event) string {
	component, host := e.Source.Component, e.Source.Host
	if component == "" {
		component, host = e.ReportingController, e.ReportingInstance
	}
	if host == "" {
		return component
	}
	return fmt.Sprintf("%s, %s", component, host)
}
