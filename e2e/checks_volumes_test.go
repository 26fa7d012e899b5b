//go:build linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// neverWas makes sure that the runtime has never heard of the pod.
func (p *pod) neverWas() {
	p.t.Helper()
	p.stays(time.Second, func() {
		r, err := p.rt.ListPodSandbox(p.t.Context(), &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{
			LabelSelector: map[string]string{"io.kubernetes.pod.name": p.name + "-" + nodeName},
		}})
		require.NoError(p.t, err)
		require.Empty(p.t, r.GetItems())
	})
}

func downwardEnv(p *pod) {
	v := p.runs()
	require.NotEmpty(p.t, v.Status.PodIP)
	for name, want := range map[string]string{
		"NODE": nodeName, "POD": "downward-env-node", "NAMESPACE": "default", "POD_UID": string(v.UID), "IP": v.Status.PodIP, "HOST_IP": nodeIP,
		"APP": "shop", "TEAM": "tools", "CPU_LIMIT_MILLI": "250", "CPU_LIMIT": "1", "MEMORY_REQUEST": fmt.Sprint(32 << 20), "MEMORY_LIMIT_MI": "64",
	} {
		p.says("main", "echo $"+name, want)
	}
	said, _, err := p.sh("main", "ip -4 -o addr")
	require.NoError(p.t, err)
	require.Contains(p.t, said, " "+v.Status.PodIP+"/", "the reported address is the one it has")
}

func downwardFiles(p *pod) {
	p.runs()
	p.says("main", "cat /etc/podinfo/labels", "cluster=\"test-cluster1\"\nzone=\"us-est-coast\"")
	p.says("main", "cat /etc/podinfo/name; stat -Lc %a /etc/podinfo/name", "downward-files-node400")
	p.says("main", "cat /etc/podinfo/limits/cpu; echo; cat /etc/podinfo/limits/memory", fmt.Sprintf("250\n%d", 64<<20))
	said, _, err := p.sh("main", "cat /etc/podinfo/annotations")
	require.NoError(p.t, err)
	require.Contains(p.t, strings.Split(said, "\n"), `build="two"`)
}

func projectedVolume(p *pod) {
	p.runs()
	p.says("main", "cd /all && find -L . -path './..*' -prune -o -type f -print | sort", "./conf/app.conf\n./labels\n./login/pass\n./login/user")
	p.says("main", "cat /all/conf/app.conf /all/login/user /all/login/pass", "workers=4admin1f2d1e2e67df")
	p.says("main", "cat /all/labels", `tier="back"`)
	p.says("main", "stat -Lc %a /all/login/user /all/login/pass /all/conf/app.conf", "440\n400\n440")
	_, code, err := p.sh("main", "touch /all/new")
	require.NoError(p.t, err)
	require.NotZero(p.t, code)
}

func configMapEnv(p *pod) {
	p.ends(corev1.PodSucceeded)
	require.Equal(p.t, "very charm very [$(ABSENT)] $(NOT_SET)\n", p.log("main", 0))
}

func configMapVolume(p *pod) {
	p.runs()
	p.says("main", "ls /etc/config; cat /etc/config/log_level /etc/fixed_level", "log_level\nlong-name\nraw\nINFOINFO")
	p.says("main", "od -An -tx1 /etc/config/raw", "00 01 04 ff")
	p.says("main", "cat /etc/some/deep/er/name; stat -Lc %a /etc/some/deep/er/name; ls /etc/some", "renamed600\nalso\ndeep")
	p.says("main", "cat /etc/some/also/log_level", "INFO") // one volume in another
	id := p.id("main")
	b, err := os.ReadFile(filepath.Join("testdata", p.file))
	require.NoError(p.t, err)
	p.put(p.t, p.file, strings.Replace(string(b), "log_level: INFO", "log_level: DEBUG", 1))
	p.saysSoon("main", "cat /etc/config/log_level", "DEBUG")
	p.says("main", "cat /etc/fixed_level", "INFO")
	require.Equal(p.t, id, p.id("main"), "the same container")
	require.Zero(p.t, find(p.runs(), "main").RestartCount)
}

func configMapMissing(p *pod) {
	require.Contains(p.t, p.waits("main", "CreateContainerConfigError").Message, "comes-later")
	p.put(p.t, "configmap-late.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: comes-later}\ndata: {greeting: good morning}\n")
	p.ends(corev1.PodSucceeded)
	require.Equal(p.t, "good morning\n", p.log("main", 0))
}

func secretEnv(p *pod) {
	p.runs()
	p.says("main", "echo $username $SECRET_USERNAME $password", "backend-admin backend-admin p$(a)ss")
}

func secretVolume(p *pod) {
	p.runs()
	p.says("main", "cat /etc/key/id /etc/key/.hidden", "not a keydot")
	p.says("main", "stat -Lc '%a %g' /etc/key/id", "440 1000") // fsGroup must be able to read
	p.says("main", "stat -fc %T /etc/key", "tmpfs")
	p.mu.Lock()
	defer p.mu.Unlock()
	require.NotContains(p.t, p.said.String(), "not a key")
}

func emptyDirDisk(p *pod) {
	v := p.until(func(v *corev1.Pod) error {
		if c := find(v, "main"); c == nil || c.State.Running == nil || c.RestartCount != 2 {
			return fmt.Errorf("is not in its third run")
		}
		return nil
	})
	p.saysSoon("main", "wc -l < /scratch/runs; wc -l < /tmp/runs", "3\n1")
	host := filepath.Join(p.node.Shared, "agent", "pods", string(v.UID))
	_, err := os.Stat(host)
	require.NoError(p.t, err)
	require.NoError(p.t, os.Remove(filepath.Join(p.manifests, p.file)))
	p.cleanedUp()
	p.eventually(func() error {
		if _, err := os.Stat(host); !os.IsNotExist(err) {
			return fmt.Errorf("%s is there: %w", host, err)
		}
		return nil
	})
}

func emptyDirMemory(p *pod) {
	p.runs()
	p.says("main", "stat -fc %T /cache", "tmpfs")
	p.says("main", "df -k /cache | tail -1 | awk '{print $2}'", "8192")
	said, code, err := p.sh("main", "dd if=/dev/zero of=/cache/big bs=1M count=10")
	require.NoError(p.t, err)
	require.NotZero(p.t, code)
	require.Contains(p.t, said, "No space left")
}

func subPath(p *pod) {
	p.runs()
	p.saysSoon("database", "cat /var/lib/table; ls /var/lib", "rows\ntable")
	p.saysSoon("web", "ls /logs", "hello.txt")
	require.Equal(p.t, "rows\n", p.shared("site/mysql/table"))
	require.Equal(p.t, "hello\n", p.shared("site/logs/subpath-node/hello.txt"))
}

func hostPathTypes(p *pod) {
	p.runs()
	p.saysSoon("main", "cat /made/one /made/file", "in the folder\nin the file")
	require.Equal(p.t, "in the folder\n", p.shared("types/made/deep/one"))
	require.Equal(p.t, "in the file\n", p.shared("types/made/deep/file"))
	p.says("main", "stat -c %F /nothing", "character special file")
	theirs, _, err := p.sh("main", "cat /host-passwd")
	require.NoError(p.t, err)
	ours, err := os.ReadFile("/etc/passwd")
	require.NoError(p.t, err)
	require.Equal(p.t, strings.TrimSpace(string(ours)), theirs)
}

func hostPathMissing(p *pod) {
	waiting := p.waits("main", "ContainerCreating")
	require.Empty(p.t, waiting.Message)
	p.hears("FailedMount", "not-yet")
	p.neverWas()
	require.NoError(p.t, os.Mkdir(filepath.Join(p.share, "not-yet"), 0o755))
	p.runs()
}

func mountPropagation(p *pod) {
	p.runs()
	p.saysSoon("looks", "cat /shared/tmpfs/file", "from within")
	require.Equal(p.t, "from within\n", p.shared("propagation/tmpfs/file"))
	p.says("looks", "grep -c ' /shared/tmpfs ' /proc/self/mounts", "1")
}
