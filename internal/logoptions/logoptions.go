// Package logoptions reads the options of a container's log from a query, as the API and the
// kubelet define them.
package logoptions

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Parse converts a query as Kubernetes does. Without a stream, all are meant.
func Parse(query url.Values) (*corev1.PodLogOptions, error) {
	all := corev1.LogStreamAll
	opts := &corev1.PodLogOptions{Stream: &all}
	var errs []error
	decode := func(name string, to func(*[]string) error) {
		if values := query[name]; len(values) > 0 {
			errs = append(errs, to(&values))
		}
	}
	boolean := func(name string, to *bool) {
		decode(name, func(v *[]string) error { return apiruntime.Convert_Slice_string_To_bool(v, to, conversion.Scope(nil)) })
	}
	number := func(name string, to **int64) {
		decode(name, func(v *[]string) error {
			*to = new(int64)
			return apiruntime.Convert_Slice_string_To_int64(v, *to, conversion.Scope(nil))
		})
	}
	if tail := query.Get("tail"); tail != "" { // of old clients; tailLines is the current name
		query = maps.Clone(query)
		query["tailLines"] = []string{tail}
		if tail == "all" {
			delete(query, "tailLines")
		}
	}
	boolean("follow", &opts.Follow)
	boolean("previous", &opts.Previous)
	boolean("timestamps", &opts.Timestamps)
	number("sinceSeconds", &opts.SinceSeconds)
	number("tailLines", &opts.TailLines)
	number("limitBytes", &opts.LimitBytes)
	if since := query.Get("sinceTime"); since != "" {
		at, err := time.Parse(time.RFC3339, since)
		errs, opts.SinceTime = append(errs, err), &metav1.Time{Time: at}
	}
	if stream := query.Get("stream"); stream != "" {
		opts.Stream = &stream
	}
	return opts, errors.Join(errs...)
}

// Validate applies the rules of the API to options that Parse has returned.
func Validate(o *corev1.PodLogOptions) (errs field.ErrorList) {
	atLeast := func(name string, n *int64, least int64) {
		if n != nil && *n < least {
			errs = append(errs, field.Invalid(field.NewPath(name), *n, fmt.Sprintf("must be at least %d", least)))
		}
	}
	atLeast("tailLines", o.TailLines, 0)
	atLeast("limitBytes", o.LimitBytes, 1)
	atLeast("sinceSeconds", o.SinceSeconds, 1)
	if o.SinceSeconds != nil && o.SinceTime != nil {
		errs = append(errs, field.Forbidden(field.NewPath(""), "at most one of sinceTime and sinceSeconds may be given"))
	}
	switch *o.Stream {
	case corev1.LogStreamAll:
	case corev1.LogStreamStdout, corev1.LogStreamStderr:
		if o.TailLines != nil { // the last lines of one stream would take reading the complete log
			errs = append(errs, field.Forbidden(field.NewPath(""), "tailLines and one stream cannot be given together"))
		}
	default:
		errs = append(errs, field.NotSupported(field.NewPath("stream"), *o.Stream, []string{corev1.LogStreamAll, corev1.LogStreamStderr, corev1.LogStreamStdout}))
	}
	return errs
}
