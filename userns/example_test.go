package userns_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/sublet-dev/agent/userns"
)

func Example() {
	dir, err := os.MkdirTemp("", "pods")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.Mkdir(filepath.Join(dir, "uid-1"), 0o700); err != nil {
		fmt.Println(err)
		return
	}
	ids, err := userns.New(userns.Config{PodsDir: dir})
	if err != nil {
		fmt.Println(err)
		return
	}
	users, _, err := ids.Ensure("uid-1")
	fmt.Println("root in the pod is", users[0].Host, "on the node,", users[0].Length, "ids,", err)
	// Output: root in the pod is 65536 on the node, 65536 ids, <nil>
}
