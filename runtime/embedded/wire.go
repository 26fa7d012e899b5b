package embedded

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What lists show of a sandbox or container changes seldom and is listed often,
// so it is kept as the bytes that a list carries as well: putting a list of
// thousands together is then copying.
type (
	// podItem is what lists show of a sandbox. It is replaced, never changed, so
	// that answers can hold on to it.
	podItem struct {
		*v1.PodSandbox
		wire []byte
	}
	// containerItem is what lists show of a container.
	containerItem struct {
		*v1.Container
		wire []byte
	}
)

func newPodItem(it *v1.PodSandbox) *podItem { return &podItem{it, encode(it)} }

func newContainerItem(it *v1.Container) *containerItem { return &containerItem{it, encode(it)} }

// encode is m as an element of the field numbered 1, which all lists of the CRI
// have their elements in.
func encode(m proto.Message) []byte {
	n := proto.Size(m)
	b := make([]byte, 0, protowire.SizeTag(1)+protowire.SizeBytes(n))
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(n))
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, m)
	if err != nil { // a string that is not UTF-8: lists leave the item out as gRPC would refuse them
		return nil
	}
	return b
}

// onWire reports whether the answer to a call goes over a wire. A caller in the
// process needs the messages themselves.
func onWire(ctx context.Context) bool { return grpc.ServerTransportStreamFromContext(ctx) != nil }

// fill makes an answer out of encoded elements.
func fill[M proto.Message, I any](answer M, items []I, wire func(I) []byte) M {
	size := 0
	for _, it := range items {
		size += len(wire(it))
	}
	b := make([]byte, 0, size)
	for _, it := range items {
		b = append(b, wire(it)...)
	}
	// Fields that a message does not know are sent as they are.
	answer.ProtoReflect().SetUnknown(b)
	return answer
}

func (p *podItem) bytes() []byte       { return p.wire }
func (c *containerItem) bytes() []byte { return c.wire }

// messages are the messages of items.
func messages[I, M any](items []I, message func(I) M) []M {
	out := make([]M, len(items))
	for i, it := range items {
		out[i] = message(it)
	}
	return out
}

func (p *podItem) message() *v1.PodSandbox      { return p.PodSandbox }
func (c *containerItem) message() *v1.Container { return c.Container }
