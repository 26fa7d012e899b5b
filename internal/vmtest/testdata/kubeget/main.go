// Kubeget prints what a path of the API of a kubeconfig returns, in one line. It is for
// machines without kubectl.
//
//	kubeget KUBECONFIG PATH
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "kubeget:", err)
		os.Exit(1)
	}
}

func run(kubeconfig, path string) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return err
	}
	resp, err := client.Get(cfg.Host + path)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", resp.Status, body)
	}
	_, err = fmt.Println(strings.ReplaceAll(strings.TrimSpace(string(body)), "\n", " "))
	return err
}
