package podspec_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

func TestRestartRuleAction(t *testing.T) {
	const (
		restart    = corev1.ContainerRestartRuleActionRestart
		restartAll = corev1.ContainerRestartRuleActionRestartAllContainers
		in         = corev1.ContainerRestartRuleOnExitCodesOpIn
		notIn      = corev1.ContainerRestartRuleOnExitCodesOpNotIn
	)
	rule := func(action corev1.ContainerRestartRuleAction, op corev1.ContainerRestartRuleOnExitCodesOperator, codes ...int32) corev1.ContainerRestartRule {
		return corev1.ContainerRestartRule{Action: action, ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: op, Values: codes}}
	}
	type rules = []corev1.ContainerRestartRule
	for name, test := range map[string]struct {
		rules rules
		code  int32
		want  corev1.ContainerRestartRuleAction
	}{
		"no rule":                              {nil, 1, ""},
		"an exit code of the list":             {rules{rule(restart, in, 1, 42)}, 42, restart},
		"an exit code that is not in it":       {rules{rule(restart, in, 1, 42)}, 2, ""},
		"an exit code out of the list":         {rules{rule(restartAll, notIn, 0)}, 3, restartAll},
		"an exit code that is excluded":        {rules{rule(restartAll, notIn, 0)}, 0, ""},
		"the first of two rules that match":    {rules{rule(restartAll, in, 1), rule(restart, in, 1)}, 1, restartAll},
		"the second, if the first fits not":    {rules{rule(restartAll, in, 1), rule(restart, in, 2)}, 2, restart},
		"a rule without exit codes":            {rules{{Action: restart}}, 0, ""},
		"a rule with an unknown operator":      {rules{rule(restart, "Above", 1)}, 1, ""},
		"a known rule after an unknown action": {rules{rule("Reboot", in, 1), rule(restart, in, 1)}, 1, restart},
	} {
		assert.Equal(t, test.want, podspec.RestartRuleAction(&corev1.Container{RestartPolicyRules: test.rules}, test.code), name)
	}
}

func TestRestartsByPolicy(t *testing.T) {
	own := func(p corev1.ContainerRestartPolicy) *corev1.ContainerRestartPolicy { return &p }
	for name, test := range map[string]struct {
		pod                        corev1.RestartPolicy
		own                        *corev1.ContainerRestartPolicy
		afterFailure, afterSuccess bool
	}{
		"Always":                         {corev1.RestartPolicyAlways, nil, true, true},
		"the default is Always":          {"", nil, true, true},
		"OnFailure":                      {corev1.RestartPolicyOnFailure, nil, true, false},
		"Never":                          {corev1.RestartPolicyNever, nil, false, false},
		"own Always in a Never pod":      {corev1.RestartPolicyNever, own(corev1.ContainerRestartPolicyAlways), true, true},
		"own Never in an Always pod":     {corev1.RestartPolicyAlways, own(corev1.ContainerRestartPolicyNever), false, false},
		"own OnFailure in an Always pod": {corev1.RestartPolicyAlways, own(corev1.ContainerRestartPolicyOnFailure), true, false},
	} {
		pod, c := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: test.pod}}, &corev1.Container{RestartPolicy: test.own}
		assert.Equal(t, test.afterFailure, podspec.RestartsByPolicy(pod, c, true), "%s: after a failure", name)
		assert.Equal(t, test.afterSuccess, podspec.RestartsByPolicy(pod, c, false), "%s: after a success", name)
	}
}
