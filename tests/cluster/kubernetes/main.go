// One binary that is a whole Kubernetes: it acts as the program whose name it is called by. One
// link of 170 MB instead of six of 60 to 120 MB each, and the packages are compiled once.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	etcd "go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// Made only when asked for: each constructor registers flags, feature gates and metrics.
var commands = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 func() *cobra.Command { return command(kubelet.NewKubeletCommand) },
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
}

// command calls the constructor of this version: up to 1.30 it has no context.
func command(constructor any) *cobra.Command {
	if make, old := constructor.(func() *cobra.Command); old {
		return make()
	}
	return constructor.(func(context.Context) *cobra.Command)(context.Background())
}

func main() {
	name := filepath.Base(os.Args[0])
	if name == "etcd" {
		etcd.Main(os.Args)
		return
	}
	constructor, known := commands[name]
	if !known {
		fmt.Fprintln(os.Stderr, "not a program of Kubernetes:", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(constructor()))
}
