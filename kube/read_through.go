package kube

import (
	"context"
	"errors"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/podspec"
)

// unansweredAge is how long a server counts as one that does not answer after a request was not answered in time.
const unansweredAge = time.Minute

// answerTimeout returns how long an answer is waited for where one is on disk. A server that answers for the
// pods of the node may be slow, and so may the limits of this client be, after a start above all. What is on disk
// may be that of an earlier object of the name then.
func (k *Kube) answerTimeout() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.store.isWatched() && (k.unanswered.IsZero() || time.Since(k.unanswered) >= unansweredAge) {
		return objectTimeout
	}
	return storedTimeout
}

// noteUnanswered notes that the server has not answered in a time of answerTimeout, so that the next requests do
// not wait for long. The short time says nothing.
func (k *Kube) noteUnanswered(timeout time.Duration) {
	if timeout == storedTimeout {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.unanswered = time.Now()
}

// readThrough gets an object from the API server and keeps it on disk. While the API server
// does not answer, the one on disk counts. The error wraps podspec.ErrObjectNotFound if there is
// none.
func readThrough[T any](ctx context.Context, k *Kube, disk objectDir, ref podspec.Ref, get func(context.Context) (*T, error)) (*T, error) {
	file, stored, timeout := objectFile(ref), new(T), callTimeout
	isStored := disk.read(file, stored)
	if isStored {
		timeout = k.answerTimeout()
	}
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	object, err := found(get(bounded))
	if isStored && bounded.Err() != nil && ctx.Err() == nil {
		k.noteUnanswered(timeout)
	}
	var errDisk error
	isCurrent := isStored && apiequality.Semantic.DeepEqual(object, stored)
	switch {
	case err == nil && !isCurrent:
		errDisk = disk.write(file, object)
	case errors.Is(err, podspec.ErrObjectNotFound):
		errDisk = disk.remove(file)
	case err != nil && isStored && !apierrors.IsForbidden(err) && ctx.Err() == nil:
		object, err = stored, nil
	}
	if errDisk != nil {
		k.cfg.Logger.Warn("object not kept on disk", logattr.Err(errDisk))
	}
	return object, err
}
