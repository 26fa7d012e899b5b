package kube

import (
	"context"
	"errors"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/podspec"
)

// readThrough gets an object from the API server and keeps it on disk. While the API server
// does not answer, the one on disk counts. The error wraps podspec.ErrObjectNotFound if there is
// none.
func readThrough[T any](ctx context.Context, k *Kube, disk objectDir, ref podspec.Ref, get func(context.Context) (*T, error)) (*T, error) {
	file, stored, timeout := objectFile(ref), new(T), callTimeout
	isStored := disk.read(file, stored)
	if isStored {
		timeout = storedTimeout
	}
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	object, err := found(get(bounded))
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
