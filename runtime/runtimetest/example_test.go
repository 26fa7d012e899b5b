package runtimetest_test

import (
	"context"
	"fmt"
	"log"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// A runtime whose first call of Version is lost.
func ExampleProxy() {
	rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{})})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = rt.Close() }()
	direct, err := rt.Dial()
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = direct.Close() }()
	rule, err := runtimetest.ParseRule("fault=drop,rpc=Version,count=1,code=Unavailable")
	if err != nil {
		log.Fatal(err)
	}
	p, err := runtimetest.NewProxy(direct, 1, rule)
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	cc, err := p.Dial()
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = cc.Close() }()
	rs := v1.NewRuntimeServiceClient(cc)
	_, err = rs.Version(context.Background(), &v1.VersionRequest{})
	fmt.Println(status.Code(err) == codes.Unavailable)
	_, err = rs.Version(context.Background(), &v1.VersionRequest{})
	fmt.Println(err)
	// Output:
	// true
	// <nil>
}
