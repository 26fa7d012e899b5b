// Package podlogs reads the logs of containers from the files that a CRI runtime writes,
// as kubectl logs shows them: a Reader copies the log of one container, all its rotated
// files included, and follows it while the container runs.
//
//	r, err := podlogs.New(podlogs.Config{LogsDir: "/var/log/pods"})
//	...
//	err = r.Copy(ctx, os.Stdout, os.Stderr, podlogs.Log{Path: "default_web_u1/app/0.log"}, &corev1.PodLogOptions{Follow: true})
//
// Guarantees:
//   - A rotation during a copy neither loses nor duplicates a line, also when rotated
//     files are compressed meanwhile. Only files that rotation removed before they were
//     read are missing: a slow reader does not stop rotation.
//   - Memory is bounded whatever a container writes: lines of any length are copied in
//     pieces, and the last lines are found from the end of the file.
//   - Only regular files in the log directory of the container are read. Links are not
//     followed, and a FIFO does not block.
//
// The parts of a line that the runtime has split (tag P) are joined. What is not in the
// format of the CRI is left out.
package podlogs
