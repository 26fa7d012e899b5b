// Package images pulls images for the pods of a node, and decides which pod may use an
// image that is present: a pod that could have pulled it with its own credentials.
//
// It has the grammar of references, the credentials of pull secrets, the queue of pulls
// with their back-off, and the records of which image was pulled with which login. It
// reaches the runtime through Service alone, and knows nothing of pods but their pull
// secrets.
package images
