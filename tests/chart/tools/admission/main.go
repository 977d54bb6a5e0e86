// admission asks of rendered manifests what the API server will ask: are all pods but the plugin's
// restricted, by Pod Security's own checks, and for which pods are the webhooks called, by the
// language of their match conditions.
//
// usage: admission FILE.yaml ...
package main

import (
	"bytes"
	"fmt"
	"os"

	"github.com/google/cel-go/cel"
	admission "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"
)

// Annotations of a pod, and whether the webhooks are called for it.
var pods = []struct {
	annotations map[string]any
	called      bool
}{
	{nil, false},
	{map[string]any{}, false},
	{map[string]any{"buffers.gpushm.io/weights": "8Gi"}, true},
	{map[string]any{"gpushm.io/pool-extra": "1Gi"}, true},
	{map[string]any{"bufers.gpushm.io/weights": "8Gi"}, true},  // A typo has to be told.
	{map[string]any{"Buffers.GPUshm.io/weights": "8Gi"}, true}, // And this one.
	{map[string]any{"gpushm.io.example.com/a": "", "a/gpushm.io": ""}, false},
	{map[string]any{"gpushm-io/a": "", "gpushmXio/a": ""}, false},
	{map[string]any{"gpushm.io/inject": "false", "kubernetes.io/config.mirror": "x"}, false},
}

var failed bool

func wrong(format string, words ...any) {
	fmt.Printf(format+"\n", words...)
	failed = true
}

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func main() {
	for _, name := range os.Args[1:] {
		text, err := os.ReadFile(name)
		check(err)
		for _, document := range bytes.Split(text, []byte("\n---\n")) {
			look(name, document)
		}
	}
	if failed {
		os.Exit(1)
	}
}

func look(name string, document []byte) {
	var kind meta.TypeMeta
	check(yaml.Unmarshal(document, &kind))
	switch kind.Kind {
	case "Pod":
		var pod core.Pod
		check(yaml.Unmarshal(document, &pod))
		restricted(name, &pod.ObjectMeta, &pod.Spec, true)
	case "Deployment":
		var deployment apps.Deployment
		check(yaml.Unmarshal(document, &deployment))
		restricted(name, &deployment.ObjectMeta, &deployment.Spec.Template.Spec, true)
	case "DaemonSet":
		var plugin apps.DaemonSet
		check(yaml.Unmarshal(document, &plugin))
		restricted(name, &plugin.ObjectMeta, &plugin.Spec.Template.Spec, false)
	case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
		var webhooks admission.ValidatingWebhookConfiguration // What is looked at is in both.
		check(yaml.Unmarshal(document, &webhooks))
		for _, webhook := range webhooks.Webhooks {
			if webhook.Name == "ephemeral.gpushm.io" {
				sidecars(name, webhook.MatchConditions)
			} else {
				annotations(name, webhook.MatchConditions)
			}
		}
	}
}

func restricted(name string, about *meta.ObjectMeta, spec *core.PodSpec, should bool) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	check(err)
	level := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	result := policy.AggregateCheckResults(evaluator.EvaluatePod(level, about, spec))
	if result.Allowed != should {
		wrong("%s: %s: restricted is %v: %s", name, about.Name, result.Allowed, result.ForbiddenDetail())
	}
}

// Whether the API server would ask about this object.
func asks(conditions []admission.MatchCondition, object map[string]any) bool {
	environment, err := cel.NewEnv(cel.Variable("object", cel.DynType))
	check(err)
	called := len(conditions) > 0
	for _, condition := range conditions {
		compiled, issues := environment.Compile(condition.Expression)
		check(issues.Err())
		program, err := environment.Program(compiled)
		check(err)
		value, _, err := program.Eval(map[string]any{"object": object})
		check(err)
		called = called && value.Value() == true
	}
	return called
}

func annotations(name string, conditions []admission.MatchCondition) {
	for _, pod := range pods {
		metadata := map[string]any{"name": "pod"}
		if pod.annotations != nil {
			metadata["annotations"] = pod.annotations
		}
		if called := asks(conditions, map[string]any{"metadata": metadata}); called != pod.called {
			wrong("%s: called is %v for %v", name, called, pod.annotations)
		}
	}
}

// Of running pods, whose annotations may have gone.
func sidecars(name string, conditions []admission.MatchCondition) {
	for container, expected := range map[string]bool{"": false, "other": false, "gpushm": true} {
		spec := map[string]any{}
		if container != "" {
			spec["initContainers"] = []any{map[string]any{"name": container}}
		}
		if called := asks(conditions, map[string]any{"spec": spec}); called != expected {
			wrong("%s: called is %v with a container %q", name, called, container)
		}
	}
}
