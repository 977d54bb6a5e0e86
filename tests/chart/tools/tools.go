// Package tools names the programs that check the chart, so that go.mod and go.sum pin all that
// goes into them.
package tools

import (
	_ "github.com/helm-unittest/helm-unittest/cmd/helm-unittest"
	_ "github.com/norwoodj/helm-docs/cmd/helm-docs"
	_ "github.com/yannh/kubeconform/cmd/kubeconform"
	_ "sigs.k8s.io/kustomize/kustomize/v5"
)
