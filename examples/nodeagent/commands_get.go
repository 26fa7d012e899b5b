package main

import (
	"context"
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"

	"github.com/sublet-dev/agent/podops"
	"github.com/sublet-dev/agent/podspec"
)

func containerOf(pod *corev1.Pod) (string, error) { return podops.Container(pod, "") }

// get prints the pods, or the named ones.
func (c *client) get(ctx context.Context, args []string) error {
	all, err := c.pods(ctx)
	if err != nil {
		return err
	}
	if len(args) > 0 && (args[0] == "pods" || args[0] == "pod" || args[0] == "po") { // as with kubectl
		args = args[1:]
	}
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{}}
	for i := range all {
		if (c.namespace == "" || all[i].Namespace == c.namespace) && (len(args) == 0 || all[i].Name == args[0]) {
			list.Items = append(list.Items, all[i])
		}
	}
	if len(args) > 0 && len(list.Items) == 0 {
		return fmt.Errorf("pod %s not found; nodeagent get without a name lists all", args[0])
	}
	switch c.output {
	case "", "wide":
		return c.table(list.Items, time.Now())
	case "json":
		encoder := json.NewEncoder(c.out)
		encoder.SetIndent("", "    ")
		return encoder.Encode(list)
	case "yaml":
		b, err := yaml.Marshal(list)
		if err != nil {
			return err
		}
		_, err = c.out.Write(b)
		return err
	}
	return fmt.Errorf("-o %q: must be json, yaml or wide", c.output)
}

// table prints pods as kubectl does.
func (c *client) table(pods []corev1.Pod, now time.Time) error {
	if len(pods) == 0 {
		fmt.Fprintln(c.errOut, "No pods found.")
		return nil
	}
	w := tabwriter.NewWriter(c.out, 0, 8, 3, ' ', 0)
	header, wide := "NAMESPACE\tNAME\tREADY\tSTATUS\tRESTARTS\tAGE", c.output == "wide"
	if wide {
		header += "\tIP\tUID"
	}
	fmt.Fprintln(w, header)
	for i := range pods {
		pod := &pods[i]
		sum := podspec.Summarize(pod)
		age := "<unknown>"
		if pod.Status.StartTime != nil {
			age = duration.HumanDuration(now.Sub(pod.Status.StartTime.Time))
		}
		fmt.Fprintf(w, "%s\t%s\t%d/%d\t%s\t%s\t%s", pod.Namespace, pod.Name, sum.Ready, sum.Containers, sum.Status, sum.RestartText(now), age)
		if wide {
			fmt.Fprintf(w, "\t%s\t%s", pod.Status.PodIP, pod.UID)
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}
